//! The kernels: each WGSL file's declaration, and beside it what chooses among its variants.
//!
//! Choosers are functions of a [`DeviceProfile`](crate::device_profile::DeviceProfile) and of
//! shapes. `all` beside each lists what it can return, by calling it for every shape between which
//! it decides: what tests compile.

pub(crate) mod attention;
pub(crate) mod attention_step;
pub(crate) mod choose;
pub(crate) mod elementwise;
pub(crate) mod gdn;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod rounded;
pub(crate) mod route;
#[cfg(test)]
mod tests;

/// All of them.
#[cfg(test)]
pub(crate) fn all() -> Vec<&'static crate::kernel::Kernel> {
    macro_rules! of {
        ($($module:ident: $($kernel:ident),*;)*) => { vec![$($(&$module::$kernel::KERNEL),*),*] };
    }
    of! {
        attention: append, attention, attention_tiles, attention_merge;
        attention_step: attention_step, attention_group, attention_heads, heads_step, latent_heads, latent_step, heads_merged, heads_turned;
        choose: choose_max, choose_histogram, choose_noisy, choose_token, choose_greedy;
        elementwise: glu, soft_cap, sigmoid_gate, combine, weighted_sum, part_of_heads, rope;
        gdn: conv, conv_step, conv_window, gdn_gates, gdn_qk_norm, gdn, gdn_raw, gdn_chunks, gdn_scan, gdn_step;
        norm: norm_add, rms_norm, gated_norm, combine_norm, combine_norm_add;
        product: embed, matvec, matmul, norm_matvec, heads, experts_down, experts_up, experts_tiled, expert_lists, expert_tiles, head_tiles, halves;
        rounded: rounded_plain, rounded_norm, rounded_norm_router, rounded_gated_norm, rounded_norm_add,
            rounded_norm_add_router, rounded_splits, rounded_layer_end, experts_up_rounded, experts_down_rounded;
        route: route_softmax, route_grouped, top;
    }
}
