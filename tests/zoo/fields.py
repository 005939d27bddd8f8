"""What the fields of configurations are, told by their names."""

import re

__all__ = ["SPAN", "SPECIAL_IDS", "TAPS", "VOCABULARY", "role_of"]

VOCABULARY = 256
"""Entries of a shrunk vocabulary."""

SPECIAL_IDS = 160
"""Where the ids of special tokens begin in a shrunk vocabulary."""


# What a field is, by its name. The first that matches tells.
ROLES = tuple(
    (role, re.compile(pattern))
    for role, pattern in (
        ("keep", r"^(num_labels|_?out_features|stage_names|seed)$"),
        ("channels", r"(num|in|input|audio|stem|mask_input)_chan(nel)?s$|^(channels|scale)$"),
        ("keep", r"kernel|stride|dilation|padding|_factor|ratio|rate|temporal|tubelet"),
        ("keep", r"merge|shuffle|feat_extract|time_step|prob$|_type|mult|reduction|compress"),
        (
            "vocab",
            r"vocab(_size)?(_base)?$|vocab_size|num_embeddings$|group_vocab$|num_hash_buckets",
        ),
        ("codes", r"^codebook_size$|codevectors_per_group"),
        (
            "token",
            r"(_tokens?|_lang|_unk|_mask|_pad|_bos|_eos)_(id|index|ids|idx)$|token_(id|index)$",
        ),
        ("token", r"^(pad|bos|eos|unk|mask|sep|cls)_(index|id)$|_(token|id)_ids?$|token_ids$"),
        (
            "period",
            r"period$|pattern$|_frequency$|_interval$|layer_step$|layer_group_size|sparse_step",
        ),
        ("period", r"every_n_layers|layers_per_attn_res_block"),
        ("offset", r"layer_offset$"),
        (
            "layer_index",
            r"(layer|block|attn|out|visual|attention)_(index|indices|indexes|idxs?|ids?)$",
        ),
        (
            "layer_index",
            r"^_?(out_indices|fullatt_block_indexes|window_block_indices)$|insert_layer",
        ),
        (
            "layer_index",
            r"^(conditional_layer|extract_layers|vision_feature_layer|max_window_layers)$",
        ),
        ("layer_index", r"^(mlp_only_layers|moe_layers|kv_source_layers|rope_scaling_layers)$"),
        ("layer_index", r"^(global_attention_blocks|subsample_layers|(vision_)?feature_layers?)$"),
        ("pinpoints", r"grid_pinpoints$"),
        ("tokens", r"^(mm_tokens_per_image|image_seq_length)$"),
        (
            "few",
            r"^(first_k_dense_replace|num_dense_layers|moe_layer_start_index)$|kv_shared_layers",
        ),
        (
            "layers",
            r"(^|_)(n_|num_)?(hidden_)?layers?$|^(encoder|decoder)_layers$|_layers$|^depth$",
        ),
        ("layers", r"^(num_blocks|n_layer|layers|num_stack|num_hidden_blocks|resampler_depth)$"),
        (
            "layers",
            r"num_(encoder|decoder)_(hidden_)?layers|_num_layers|num_mel_attn_blocks|hrm.*layers",
        ),
        ("depths", r"^(depths|num_block_repeats|blocks_per_stage|stage_num_blocks|block_sizes)$"),
        ("depths", r"^(stage_numb_of_layers|hidden_layers_per_stage)$"),
        ("top_k", r"experts_per_tok(en)?$|^(moe_)?top_?k$|^moe_k$|topk$|top_k_experts|moe_top_k"),
        ("inner", r"upsample_groups"),
        ("groups", r"^(n_group|topk_group|num_expert_group|moe_n_group|topk_groups)$"),
        (
            "experts",
            r"^(moe_)?(num|n)_?(local_|routed_)?experts$|moe_num_(routed_)?experts|^n_experts$",
        ),
        ("key_heads", r"(kv|key_value|kv_n)_?(num_)?heads$|num_key_value_heads|query_groups"),
        ("heads", r"heads?$|attention_heads|num_heads|n_heads?$"),
        (
            "image",
            r"^(image|input_image|pretrain_image|img|crop|train_image|resolution|spec)_?(size)?$",
        ),
        ("grid", r"^(image_embedding_size|pos_emb_(height|width)|posemb_grid_size)$"),
        ("positions", r"positions?$|position_embeddings?$|max_len$|_positions_|n_ctx|max_seq"),
        ("positions", r"max_(text|source|target)_|sequence_length$|max_relative|rel_extent"),
        ("window", r"(sliding|attention)_window|^(chunk_size|mamba_chunk_size|context_size)$"),
        ("window", r"^(local_attention|block_size|attention_chunk_size)$"),
        ("times", r"^mask_(time|feature)_length$"),
        ("head_width", r"head_dim$|^(d_kv|d_head|kv_channels|head_size|dim_head|mamba_headdim)$"),
        (
            "head_width",
            r"v_head_dim|_head_(dim|width)$|mamba_d_head|rotary_dim|^attention_head_dim$",
        ),
        ("rank", r"lora_rank|_rank$|^(d_state|state_size|ssm_state_size|mamba_d_state)$"),
        (
            "inner",
            r"intermediate|ffn|mlp_dim|(^|_)d?_?ff(n)?$|inner_dim|d_inner|feed_?forward|dff$",
        ),
        ("inner", r"linear_units|moe_(hidden|expert)|conv_dim$|expert_dim"),
        ("width", r"hidden|width|dim(ension)?s?$|d_model|embd|embed|channels?$|channel_list|units"),
        ("width", r"size$|filters|proj|num_pos_feats|latent|(^|_)emb_|cond"),
        ("queries", r"num_quer(ies|y)|latents?$|query_(num|length)|num_denoising|n_latents"),
    )
)

# Lists of layers whose results are taken.
TAPS = re.compile(r"out_indices|extract|deepstack|feature_layers?|taps|hooks")

# Lists that need as many layers as they are long.
SPAN = re.compile(TAPS.pattern + r"|block_types")

# Fields that hold sizes but no widths.
NO_WIDTH = re.compile(
    r"bin|mel|label|dropout|sampling|patch|vocab|batch|beam|window|segment|prompt|quant|"
    r"loss|bucket|feature_sizes|fft|length|time|n_mels|context|block_|chunk|feat_sizes|"
    r"input_size|feature_size|num_codebook|num_frames|grid|image|roi|type|bbox|out_hidden"
)


def role_of(name: str) -> str | None:
    """Tell what a field of this name is; None where that is not known."""
    for role, pattern in ROLES:
        if pattern.search(name):
            if role == "width" and NO_WIDTH.search(name) and "out_hidden" not in name:
                return None
            return role
    return None
