"""Megatron's options that have no effect on a native run, by reason; the names are argparse's dests.

An option that is neither here nor in the recipe is an error unless it has upstream's default.
"""

IGNORED = {
    "the kernels choose precision and placement themselves": """
        DDP_impl abort_on_unmet_fused_kernel_constraints align_grad_reduce align_param_gather apply_rope_fusion
        async_tensor_model_parallel_allreduce attention_backend barrier_with_L1_time bias_dropout_fusion
        bias_swiglu_fusion clone_scatter_output_in_embedding cross_entropy_fusion_impl cross_entropy_loss_fusion
        cuda_graph_impl cuda_graph_warmup_steps ddp_bucket_size ddp_average_in_collective ddp_num_buckets
        ddp_pad_buckets_for_high_nccl_busbw ddp_reduce_scatter_with_fp32_accumulation
        defer_embedding_wgrad_compute delay_wgrad_compute deterministic_mode disable_symmetric_registration
        ds_fused_adam empty_unused_memory_level enable_cuda_graph external_cuda_graph
        gradient_accumulation_fusion high_priority_stream_groups lazy_mpu_init manual_gc manual_gc_eval
        manual_gc_interval masked_softmax_fusion mem_efficient_ln memory_centric_tiled_linear
        nccl_communicator_config_path nccl_ub no_persist_layer_norm overlap_grad_reduce overlap_p2p_comm
        overlap_p2p_comm_warmup_flush overlap_param_gather overlap_param_gather_with_optimizer_step
        pipeline_model_parallel_comm_backend profile_backward scatter_gather_tensors_in_pipeline
        split_transformers suggested_communication_unit_size symmetric_ar_type sync_tp_duplicated_parameters
        synchronize_each_layer te_rng_tracker tile_factor tp_comm_bootstrap_backend tp_comm_bulk_dgrad
        tp_comm_bulk_wgrad tp_comm_overlap tp_comm_overlap_ag tp_comm_overlap_cfg tp_comm_overlap_rs
        tp_comm_overlap_rs_dgrad tp_comm_split_ag tp_comm_split_rs train_sync_interval transformer_impl
        use_contiguous_buffers_in_ddp use_contiguous_buffers_in_local_ddp use_flash_attn use_flash_attn_builder
        use_flash_attn_triton use_flash_attn_v1 use_flash_attn_v2 use_fused_weighted_squared_relu
        use_gloo_process_groups use_pin_memory use_ring_exchange_p2p use_sharp use_te_activation_func
        use_transformer_engine_op_fuser wgrad_deferral_limit zero_allgather_bucket_size
        zero_contigious_gradients zero_reduce_bucket_size zero_reduce_scatter""",
    "softmax is always computed in fp32, which needs no scaling by layer": """
        apply_query_key_layer_scaling attention_softmax_in_fp32""",
    "gradients are always accumulated and reduced in fp32": """
        accumulate_allreduce_grads_in_fp32 grad_reduce_in_bf16""",
    "activations stay on the device that computed them": """
        checkpoint_in_cpu contigious_checkpointing deepspeed_activation_checkpointing
        distribute_checkpointed_activations distribute_saved_activations partition_activations""",
    "the device determines the communication backend, and the launcher the ranks": """
        distributed_backend distributed_timeout_minutes local_rank use_tp_pp_dp_mapping""",
    "the model is always built from this package's own layers": """
        deprecated_use_mcore_models use_cpu_initialization use_legacy_models""",
    "it has no effect on the model of this version": "onnx_safe openai_gelu",
    "the format is detected from the token files": """
        data_impl mmap_bin_files mmap_warmup num_dataset_builder_threads object_storage_cache_path s3_cache_path
        create_attention_mask_in_dataloader repeated_dataloader return_data_index valid_num_workers""",
    "native checkpoints have one format": """
        async_save auto_detect_ckpt_format ckpt_assume_constant_structure ckpt_format ckpt_fully_parallel_load
        ckpt_fully_parallel_save ckpt_fully_parallel_save_deprecated ckpt_fully_parallel_save_process_group
        dist_ckpt_format_deprecated dist_ckpt_strictness dist_ckpt_workers use_dist_ckpt_deprecated
        use_persistent_ckpt_worker universal_checkpoint verify_integrity""",
    "it sets what upstream logs; every native run logs the same metrics": """
        adlr_autoresume_interval app_tag_run_name app_tag_run_version codecarbon_dir config_logger_dir
        enable_one_logger log_batch_size_to_tensorboard log_energy log_learning_rate_to_tensorboard log_level
        log_level_replica log_loss_scale_to_tensorboard log_memory_interval log_memory_to_tensorboard
        log_optimizer_states_to_tensorboard log_path log_progress log_straggler log_throughput
        log_timers_to_tensorboard log_validation_ppl_to_tensorboard log_world_size_to_tensorboard logging_level
        one_logger_async one_logger_project one_logger_run_name profile profile_ranks profile_step_end
        profile_step_start profile_steps straggler_ctrlr_port straggler_minmax_count
        disable_straggler_on_startup tensorboard_queue_size timing_log_level timing_log_option
        use_pytorch_profiler wandb_save_dir record_memory_history memory_snapshot_path
        check_for_spiky_loss check_for_large_grads check_weight_hash_across_dp_replicas_interval rerun_mode""",
    "it is only used in tasks other than training a GPT": """
        bert_binary_head bert_embedder_type biencoder_projection_dim classes_fraction data_per_class_fraction
        decoder_seq_length dino_bottleneck_size ict_head_size img_dim img_h img_w indexer_batch_size
        indexer_log_interval inference inference_batch_times_seqlen_threshold init_method_xavier_uniform
        iter_per_epoch mask_factor mask_prob mask_type max_tokens_to_oom num_channels num_classes patch_dim
        query_in_block_prob retriever_report_topk_accuracies retriever_score_scaling retriever_seq_length
        sample_rate short_seq_prob swin_backbone_type vision_backbone_type vocab_extra_ids head_lr_mult""",
}
