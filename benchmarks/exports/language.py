"""Encoders and decoders of text."""

from __future__ import annotations

from typing import Any

from benchmarks.exports.architecture import Architecture, Block, activation, attention, layer_norm, rms_norm, rotary

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "n_positions": 128}
GELU, TANH, SILU = activation(2, "gelu"), activation(2, "gelu_tanh"), activation(2, "silu")
PADDED = attention(2, mask="padding")
BIASED = attention(2, mask="bias padding")
CAUSAL = attention(2, mask="causal padding")
CAUSAL_2 = attention(2, kv=2, mask="causal padding")


def _encoder(name: str, *extra: Block, blocks: tuple[Block, ...] | None = None, **config: Any) -> Architecture:
    """An encoder as BERT is one, unless told otherwise."""
    usual = (PADDED, layer_norm(5), GELU)
    return Architecture(name, {**SMALL, **config}, "text", (usual if blocks is None else blocks) + extra)


def _decoder(name: str, config: dict[str, Any], *blocks: Block, **more: Any) -> Architecture:
    return Architecture(name, config, "text", blocks, **more)


def _with_past(architecture: Architecture, kv: int = 4, head_size: int = 16) -> Architecture:
    """The same decoder, one step of it behind others."""
    blocks = tuple({**one, "past": True} if one["kind"] == "attention" else one for one in architecture.blocks)
    return Architecture(
        f"{architecture.name}-past",
        architecture.config,
        "past",
        blocks,
        architecture.model_type or architecture.name,
        sizes={"layers": 2, "kv": kv, "head_size": head_size},
    )


ENCODERS = (
    _encoder("bert"),
    _encoder("roberta"),
    _encoder("camembert"),
    _encoder("electra", embedding_size=32),
    _encoder("albert", embedding_size=32, blocks=(PADDED, layer_norm(5), TANH)),
    _encoder("mpnet", blocks=(BIASED, layer_norm(5), GELU)),
    _encoder("layoutlm"),
    _encoder("ernie"),
    _encoder("megatron-bert"),
    _encoder("nezha"),
    _encoder("xlm-roberta"),
    _encoder("data2vec-text"),
    _encoder("roformer", rotary(4, interleaved=True), embedding_size=64),
    _encoder("esm", rotary(4), position_embedding_type="rotary", token_dropout=False),
    _encoder("modernbert", rotary(4), blocks=(attention(2, mask="padding window"), layer_norm(5), GELU)),
    Architecture(
        "distilbert",
        {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 1000, "max_position_embeddings": 128},
        "text",
        (PADDED, layer_norm(5), GELU),
    ),
    _encoder(
        "deberta-v2",
        blocks=(
            attention(2, mask="bias padding"),
            layer_norm(5),
            GELU,
        ),  # that of the relative positions is one of weights: a constant
        relative_attention=True,
        pos_att_type="c2p|p2c",
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
    ),
    Architecture(
        "xlm",
        {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 1000, "max_position_embeddings": 128, "n_langs": 1},
        "text",
        (PADDED, layer_norm(5), GELU),
    ),
    Architecture(
        "mobilebert",
        {
            **SMALL,
            "intra_bottleneck_size": 32,
            "true_hidden_size": 32,
            "embedding_size": 32,
            "normalization_type": "layer_norm",
        },
        "text",
        (PADDED, layer_norm(17)),
    ),
    _encoder("nomic_bert", rotary(4), blocks=(PADDED, layer_norm(5), SILU)),
)

_LLAMA = _decoder("llama", GROUPED, CAUSAL_2, rotary(4), rms_norm(5), SILU)
_GPT2 = _decoder("gpt2", GPT, CAUSAL, layer_norm(5), TANH)
_MISTRAL = _decoder(
    "mistral",
    {**GROUPED, "sliding_window": 32},
    attention(2, kv=2, mask="causal padding window"),
    rotary(4),
    rms_norm(5),
    SILU,
)
_QWEN2 = _decoder("qwen2", GROUPED, CAUSAL_2, rotary(4), rms_norm(5), SILU)
_QWEN3 = _decoder("qwen3", {**GROUPED, "head_dim": 16}, CAUSAL_2, rotary(4), rms_norm(9), SILU)
_PHI = _decoder("phi", SMALL, CAUSAL, rotary(4), layer_norm(3), TANH)
_PHI3 = _decoder("phi3", GROUPED, CAUSAL_2, rotary(4), rms_norm(5), SILU)
_GEMMA = _decoder(
    "gemma",
    {**SMALL, "num_key_value_heads": 1, "head_dim": 16},
    attention(2, kv=1, mask="causal padding"),
    rotary(4),
    rms_norm(5),
    TANH,
)
_GPT_NEOX = _decoder("gpt_neox", SMALL, CAUSAL, rotary(4), layer_norm(5), GELU)
_OPT = _decoder(
    "opt",
    {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 128,
        "vocab_size": 1000,
        "max_position_embeddings": 128,
        "word_embed_proj_dim": 64,
    },
    CAUSAL,
    layer_norm(5),
)
_GPTJ = _decoder("gptj", {**GPT, "rotary_dim": 8}, CAUSAL, rotary(4, interleaved=True), layer_norm(3), TANH)
_STABLELM = _decoder("stablelm", GROUPED, CAUSAL_2, rotary(4), layer_norm(5), SILU)
_STARCODER2 = _decoder("starcoder2", GROUPED, CAUSAL_2, rotary(4), layer_norm(5), TANH)
_COHERE = _decoder("cohere", GROUPED, CAUSAL_2, rotary(4, interleaved=True), layer_norm(3), SILU)
_GRANITE = _decoder("granite", GROUPED, CAUSAL_2, rotary(4), rms_norm(5), SILU)

DECODERS = (
    _LLAMA,
    _GPT2,
    _MISTRAL,
    _QWEN2,
    _QWEN3,
    _PHI,
    _PHI3,
    _GEMMA,
    _GPT_NEOX,
    _OPT,
    _GPTJ,
    _STABLELM,
    _STARCODER2,
    _COHERE,
    _GRANITE,
    _decoder(
        "gpt_neo",
        {
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "vocab_size": 1000,
            "max_position_embeddings": 128,
            "window_size": 8,
        },
        attention(2, mask="causal padding window"),
        layer_norm(5),
        TANH,
    ),
    _decoder(
        "bloom",
        {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000},
        attention(2, mask="alibi causal padding"),
        layer_norm(6),
        TANH,
    ),
    _decoder(
        "falcon",
        {**SMALL, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "bias": False},
        attention(2, kv=1, mask="causal padding"),
        rotary(4),
        layer_norm(3),
        GELU,
    ),
    _decoder(
        "mpt",
        {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 128, "vocab_size": 1000},
        attention(2, mask="alibi causal padding"),
        layer_norm(5),
        GELU,
    ),
    _decoder(
        "gemma2",
        {**GROUPED, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
        attention(2, kv=2, mask="cap causal padding window"),
        rotary(4),
        rms_norm(9),
        TANH,
    ),
    _decoder(
        "gemma3_text",
        {**GROUPED, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
        attention(2, kv=2, mask="causal padding window"),
        rotary(4),
        rms_norm(13),
        TANH,
    ),
    _decoder("olmo", GROUPED, CAUSAL_2, rotary(4), layer_norm(5), SILU),
    _decoder("olmo2", GROUPED, CAUSAL_2, rotary(4), rms_norm(9), SILU),
    _decoder("smollm3", GROUPED, CAUSAL_2, rotary(4), rms_norm(5), SILU),
    _decoder("glm", {**GROUPED, "head_dim": 16}, CAUSAL_2, rotary(4, interleaved=True), rms_norm(5), SILU),
    _decoder("persimmon", SMALL, CAUSAL, rotary(4), layer_norm(9)),
    _decoder("nemotron", GROUPED, CAUSAL_2, rotary(4), layer_norm(5)),
    _decoder("codegen", {**GPT, "rotary_dim": 8}, CAUSAL, rotary(4, interleaved=True), layer_norm(3), TANH),
    _decoder("gpt_bigcode", GPT, attention(2, kv=1, mask="causal padding"), layer_norm(5), TANH),
    _decoder("biogpt", SMALL, CAUSAL, layer_norm(5), GELU),
    _decoder(
        "xglm",
        {
            "d_model": 64,
            "num_layers": 2,
            "attention_heads": 4,
            "ffn_dim": 128,
            "vocab_size": 1000,
            "max_position_embeddings": 128,
        },
        CAUSAL,
        layer_norm(5),
        GELU,
    ),
    _decoder(
        "mixtral",
        {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
        CAUSAL_2,
        rotary(4),
        rms_norm(5),
    ),
    _with_past(_LLAMA, kv=2),
    _with_past(_GPT2),
    _with_past(_MISTRAL, kv=2),
    _with_past(_PHI),
    _with_past(_QWEN3, kv=2),
    _with_past(_PHI3, kv=2),
    _with_past(_GEMMA, kv=1),
    _with_past(_GPT_NEOX),
    _with_past(_OPT),
    _with_past(_GPTJ),
    _with_past(_STABLELM, kv=2),
    _with_past(_COHERE, kv=2),
)
