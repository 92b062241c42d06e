"""GLM's options that have no effect on a native run, by reason; the names are argparse's dests."""

IGNORED = {
    "the launcher starts the ranks, and the device determines the communication backend": """
        DDP_impl deepscale deepscale_config deepspeed_mpi distributed_backend local_rank""",
    "the kernels choose precision and placement themselves": """
        attention_scale cpu_optimizer cpu_torch_adam deepspeed_activation_checkpointing fp32_allreduce
        fp32_embedding fp32_layernorm fp32_tokentypes""",
    "token files are mapped into memory, and every rank samples from all of them": """
        half_lazy_loader loader_scatter no_lazy_loader""",
    "a resumed run always continues with the next samples": "resume_dataloader",
    "evaluation in pretraining uses the batch size and length of training": """
        eval_max_preds_per_seq eval_text_key max_preds_per_seq""",
    "upstream itself does not read it for blank infilling and cloze tasks": """
        blank_maskratio deep_init delim fix_command_token input_data_sizes_file intermediate_size label_smoothing
        layernorm_epsilon loose_json mask_pad_token mem_length out_seq_length output_dropout
        overlapping_eval pool_token presplit_sentences prompt_func reset_attention_mask reset_position_ids
        src_seq_length text_key tgt_seq_length tokenizer_path unidirectional vocab_size""",
    "it only affects generation": """
        min_tgt_length no_repeat_ngram_size num_beams select_topk temperature top_k top_p""",
    "it belongs to a prompt or task that other options enable": """
        num_prompt_tokens prompt_init multi_batch_size multi_seq_length tune_prefix_layers wsc_negative""",
    "a native run never deletes results": "overwrite",
    "checkpoints have one format": "no_deepspeed_load",
    "it names files of BERT or sentencepiece, which the recipe does not support": "cache_dir",
}
IN_PRETRAINING = {
    "it only affects finetuning tasks": """
        adapet cloze_eval continuous_prompt data_dir epochs eval_epoch eval_valid fast_decode few_superglue
        length_penalty loss_func multi_token no_validation pattern_id save_epoch segment_length task
        validation_metric"""
}
IN_FINETUNING = {
    "a task has its own examples, epochs and validation": """
        avg_block_length bert_prob eval_interval eval_iters filter_english gap_sentence_prob gap_sentence_ratio
        gpt_infill_prob gpt_min_ratio no_shuffle_block non_sentence_start num_workers random_position
        sample_one_document save_interval short_seq_prob shuffle single_span_prob split test_data train_data train_iters
        valid_data"""
}
