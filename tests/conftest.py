"""Makes the helpers that several test folders share importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
