"""Every architecture by name."""

from __future__ import annotations

from benchmarks.exports import language, others

ARCHITECTURES = {
    one.name: one
    for group in (
        language.ENCODERS,
        language.DECODERS,
        others.PAIRS,
        others.VISION,
        others.SOUND,
        others.DIFFUSION,
    )
    for one in group
}
