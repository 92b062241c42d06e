"""torch's scaled_dot_product_attention: its own choice, or one of its CUDA kernels."""
