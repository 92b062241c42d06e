"""npu_fusion_attention: flash attention of torch_npu, in all its versions, layouts and sparse modes."""
