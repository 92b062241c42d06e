"""npu_fusion_attention: torch_npu's flash attention, in all its versions, layouts and sparse modes."""
