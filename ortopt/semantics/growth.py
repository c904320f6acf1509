"""By how much a result may be larger than the original."""

from ortopt.options import GROWTH_SHARE, MEGABYTE, Options


def growth_allowance(original_bytes: int, options: Options) -> int:
    """The bytes by which a result may exceed the original: `Options.max_growth`, or max(1 MB, 1 %)."""
    if options.max_growth is not None:
        return options.max_growth
    return max(MEGABYTE, int(original_bytes * GROWTH_SHARE))
