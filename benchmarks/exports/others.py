"""Pairs of encoder and decoder, vision, speech, diffusion."""

from __future__ import annotations

from typing import Any

from benchmarks.exports.architecture import (
    Architecture,
    activation,
    attention,
    group_norm,
    layer_norm,
    rms_norm,
    rotary,
)

PAIR: dict[str, Any] = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}
PAIR_BLOCKS = (attention(2, mask="padding"), attention(2, mask="causal"), attention(2, mask="padding"))
BIASED_PAIR = (attention(2, mask="bias padding"), attention(2, mask="bias causal"), attention(2, mask="padding"))
T5: dict[str, Any] = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 1000}
IMAGE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
}
GELU, QUICK, SILU = activation(2, "gelu"), activation(2, "quick_gelu"), activation(2, "silu")
SPEECH: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": (32, 32),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}

STEP = {"layers": 2, "kv": 4, "head_size": 16}
WHISPER: dict[str, Any] = {
    **{key: value for key, value in PAIR.items() if key != "max_position_embeddings"},
    "max_source_positions": 50,
    "max_target_positions": 64,
    "num_mel_bins": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

PAIRS = (
    Architecture("bart", PAIR, "pair", (*PAIR_BLOCKS, layer_norm(12), activation(4, "gelu"))),
    Architecture("mbart", PAIR, "pair", (*PAIR_BLOCKS, layer_norm(14), activation(4, "gelu"))),
    Architecture("pegasus", PAIR, "pair", (*PAIR_BLOCKS, layer_norm(12), activation(4, "gelu"))),
    Architecture(
        "marian",
        {**PAIR, "pad_token_id": 0, "decoder_vocab_size": 1000},
        "pair",
        (*PAIR_BLOCKS, layer_norm(10), activation(4, "gelu")),
    ),
    Architecture("m2m_100", PAIR, "pair", (*PAIR_BLOCKS, layer_norm(12))),
    Architecture("blenderbot", PAIR, "pair", (*PAIR_BLOCKS, layer_norm(12), activation(4, "gelu"))),
    Architecture("t5", T5, "pair", (*BIASED_PAIR, rms_norm(12))),
    Architecture(
        "mt5",
        {**T5, "feed_forward_proj": "gated-gelu"},
        "pair",
        (*BIASED_PAIR, rms_norm(12), activation(4, "gelu_tanh")),
    ),
    Architecture(
        "whisper",
        WHISPER,
        "spectrum_pair",
        (attention(2), attention(2, mask="causal"), attention(2), layer_norm(12), activation(6, "gelu")),
    ),
    Architecture(
        "t5-decoder",
        T5,
        "decoder",
        (attention(2, mask="bias causal", past=True), attention(2), rms_norm(7)),
        model_type="t5",
        part="decoder",
        sizes=STEP,
    ),
    Architecture(
        "whisper-decoder",
        WHISPER,
        "decoder",
        (attention(2, mask="causal", past=True), attention(2), layer_norm(7), activation(2, "gelu")),
        model_type="whisper",
        part="decoder",
        sizes=STEP,
    ),
)

VISION = (
    Architecture("vit", IMAGE, "image", (attention(2), layer_norm(5), GELU)),
    Architecture("deit", IMAGE, "image", (attention(2), layer_norm(5), GELU)),
    Architecture("vit_mae", {**IMAGE, "mask_ratio": 0.0}, "image", (attention(2), layer_norm(5), GELU)),
    Architecture(
        "dinov2",
        {key: value for key, value in IMAGE.items() if key != "intermediate_size"},
        "image",
        (attention(2), layer_norm(5), GELU),
    ),
    Architecture(
        "beit", {**IMAGE, "use_relative_position_bias": True}, "image", (attention(2, mask="bias"), layer_norm(4), GELU)
    ),
    Architecture(
        "yolos",
        {**IMAGE, "image_size": [32, 32], "num_detection_tokens": 5},
        "image",
        (attention(2), layer_norm(5), GELU),
    ),
    Architecture("clip_vision_model", IMAGE, "image", (attention(2), layer_norm(5), QUICK)),
    Architecture("siglip_vision_model", IMAGE, "image", (attention(2), layer_norm(5), activation(2, "gelu_tanh"))),
    Architecture("dpt", {**IMAGE, "backbone_out_indices": [0, 1, 1, 1]}, "image", (attention(2), layer_norm(5), GELU)),
    Architecture("ijepa", IMAGE, "image", (attention(2), layer_norm(5), GELU)),
    Architecture(
        "swin",
        {"image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        "image",
        (attention(4, [2, 2, 4, 4], mask="bias window"), layer_norm(11), activation(4, "gelu")),
    ),
    Architecture(
        "swinv2",
        {"image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        "image",
        (attention(4, [2, 2, 4, 4], mask="bias window"), layer_norm(11), activation(4, "gelu")),
    ),
    Architecture(
        "segformer",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 2],
            "hidden_sizes": [32, 64],
            "num_attention_heads": [1, 2],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
        },
        "image",
        (attention(2, [1, 2]), layer_norm(10), GELU),
    ),
    Architecture(
        "sam",
        {
            "vision_config": {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "mlp_dim": 128,
                "image_size": 64,
                "patch_size": 8,
                "window_size": 4,
                "global_attn_indexes": [1],
                "output_channels": 32,
            }
        },
        "image",
        (attention(2, mask="bias"), layer_norm(6), GELU),
        part="vision_encoder",
        sizes={"image": 64},
    ),
    Architecture(
        "detr",
        {
            **{key: value for key, value in PAIR.items() if key not in {"vocab_size", "max_position_embeddings"}},
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "num_queries": 7,
            "backbone_config": {
                "model_type": "resnet",
                "embedding_size": 16,
                "hidden_sizes": [16, 32],
                "depths": [1, 1],
                "layer_type": "basic",
                "out_features": ["stage2"],
            },
        },
        "image",
        (attention(2, mask="padding"), attention(2), attention(2, mask="padding"), layer_norm(11)),
        sizes={"image": 64},
    ),
    Architecture(
        "convnext", {"depths": [1, 1], "hidden_sizes": [32, 64], "num_stages": 2}, "image", (layer_norm(4), GELU)
    ),
    Architecture(
        "clip",
        {
            "text_config": {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 128,
                "vocab_size": 1000,
                "eos_token_id": 2,
            },
            "vision_config": IMAGE,
            "projection_dim": 32,
        },
        "text_and_image",
        (attention(2, mask="causal padding"), attention(2), layer_norm(11), activation(4, "quick_gelu")),
    ),
)

SOUND = (
    Architecture("wav2vec2", SPEECH, "wave", (attention(2), layer_norm(6), group_norm(1), activation(5, "gelu"))),
    Architecture("hubert", SPEECH, "wave", (attention(2), layer_norm(6), group_norm(1), activation(5, "gelu"))),
    Architecture(
        "wavlm", SPEECH, "wave", (attention(2, mask="bias"), layer_norm(6), group_norm(1), activation(5, "gelu"))
    ),
    Architecture("unispeech", SPEECH, "wave", (attention(2), layer_norm(6), group_norm(1), activation(5, "gelu"))),
    Architecture(
        "audio-spectrogram-transformer",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "max_length": 64,
            "num_mel_bins": 32,
        },
        "spectrum",
        (attention(2), layer_norm(5), GELU),
    ),
)

_UNET: dict[str, Any] = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "layers_per_block": 1,
    "block_out_channels": (32, 64),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 32,
    "attention_head_dim": 4,
    "norm_num_groups": 8,
}

DIFFUSION = (
    Architecture(
        "unet_condition",
        _UNET,
        "noise_and_text",
        (attention(8), layer_norm(12), group_norm(21), activation(19, "silu"), activation(4, "gelu")),
        loader="UNet2DConditionModel",
    ),
    Architecture(
        "vae_decoder",
        {
            "block_out_channels": (32, 64),
            "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
            "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
            "norm_num_groups": 8,
            "latent_channels": 4,
        },
        "latent",
        (attention(1, 1), group_norm(14), activation(13, "silu")),
        loader="AutoencoderKL",
        part="decoder",
    ),
    Architecture(
        "dit",
        {
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "sample_size": 8,
            "patch_size": 2,
            "num_embeds_ada_norm": 10,
        },
        "noise_and_class",
        (attention(2), layer_norm(5), activation(2, "gelu_tanh"), activation(4, "silu")),
        loader="DiTTransformer2DModel",
    ),
    Architecture(
        "pixart",
        {
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "sample_size": 8,
            "patch_size": 2,
            "cross_attention_dim": 64,
            "caption_channels": 32,
            "use_additional_conditions": False,
        },
        "latent_and_text",
        (attention(4), layer_norm(5), activation(3, "gelu_tanh"), activation(2, "silu")),
        loader="PixArtTransformer2DModel",
    ),
    Architecture(
        "sd3",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 4,
            "joint_attention_dim": 32,
            "caption_projection_dim": 64,
            "pooled_projection_dim": 32,
            "pos_embed_max_size": 8,
        },
        "noise_text_and_pool",
        (attention(2), layer_norm(8), activation(3, "gelu_tanh"), activation(3, "silu")),
        loader="SD3Transformer2DModel",
    ),
    Architecture(
        "flux",
        {
            "patch_size": 1,
            "in_channels": 16,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 4,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 32,
            "axes_dims_rope": (4, 6, 6),
        },
        "flux",
        (
            attention(2),
            rotary(4, interleaved=True),
            layer_norm(6),
            rms_norm(6),
            activation(3, "gelu_tanh"),
            activation(3, "silu"),
        ),
        loader="FluxTransformer2DModel",
    ),
)
