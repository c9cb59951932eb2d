"""The systems that we compare ourselves with, one folder each: `driver.py` and pinned `requirements.txt`."""

from __future__ import annotations
