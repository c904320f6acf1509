"""The version of ortopt: the only place that states it; the package's metadata are built from here."""

__version__ = "0.1.0"
