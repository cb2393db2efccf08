"""mtp-bench: measures multi-token-prediction decoding and finds the token tree that is really fastest on a device."""

__version__ = "0.1.0"
