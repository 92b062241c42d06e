"""GPT-NeoX's keys that have no effect on a native run, by reason.

A key that is neither here nor in the recipe is an error unless it has upstream's default.
"""

IGNORED = {
    "the kernels choose precision and placement themselves": """
        bias_dropout_fusion fused_kernels_build_path gradient_noise_scale_cpu_offload
        gradient_noise_scale_n_batches layernorm_fusion lazy_mpu_init mamba_causal_conv_fusion
        mamba_inner_func_fusion mamba_selective_scan_fusion prescale_gradients gradient_predivide_factor
        profile_backward rmsnorm_fusion rope_fusion rotary_save_freqs_buffer scaled_masked_softmax_fusion
        scaled_upper_triang_masked_softmax_fusion synchronize_each_layer use_cpu_initialization
        use_flashattn_swiglu use_triangle_attn async_tensor_model_parallel_allreduce zero_allgather_bucket_size
        zero_allow_untested_optimizer zero_contiguous_gradients zero_reduce_bucket_size zero_reduce_scatter
        output_layer_parallelism""",
    "softmax is always computed in fp32, which needs no scaling by layer": """
        apply_query_key_layer_scaling attention_softmax_in_fp32""",
    "gradients are always accumulated and reduced in fp32": """
        communication_data_type data_types fp32_allreduce""",
    "activations stay on the device that computed them": """
        activation_checkpointing checkpoint_in_cpu contiguous_checkpointing deepspeed_activation_checkpointing
        partition_activations""",
    "the launcher starts the ranks": """
        account comment deepspeed_mpi deepspeed_slurm detect_nvlink_pairs distributed_backend force_multi
        launcher local_rank master_addr master_port no_ssh_check rank use_shared_fs user_script
        world_size""",
    "the format is detected from the token files": """
        data_impl mmap_warmup short_seq_prob""",
    "native checkpoints have one format": """
        checkpoint checkpoint_validation_with_forward_pass""",
    "it is derived from other keys": """
        batch_size clip_grad config_files deepspeed dynamic_loss_scale gas git_hash hysteresis is_pipe_parallel
        loss_scale loss_scale_window lr min_scale optimizer_type padded_vocab_size save_iters zero_stage""",
    "it sets what upstream logs; every native run logs the same metrics": """
        adlr_autoresume_interval comet_experiment comet_experiment_name comet_others comet_project comet_tags
        comet_workspace comms_logger csv_monitor dump_state flops_profiler log_dir log_grad_norm log_grad_pct_zeros
        log_gradient_noise_scale log_optimizer_states log_param_norm memory_profiling memory_profiling_path
        peak_theoretical_tflops profile profile_step_start profile_step_stop steps_per_print tensorboard use_comet
        wall_clock_breakdown wandb wandb_host wandb_init_all_ranks""",
    "upstream derives it from the data and the iterations; ascend-run --eval-only evaluates without training": """
        do_test do_train do_valid""",
    "it only affects text generation and evaluation": """
        char_level_ppl eval_results_prefix eval_tasks maximum_tokens num_samples precompute_model_name prompt_end
        recompute return_logits sample_input_file sample_output_file temperature text_gen_type top_k top_p""",
}
