import torch
import torch_npu

boxes, scores = torch.ones(2, 5, device="npu"), torch.ones(2, device="npu")
kept = torch_npu.npu_nms_rotated(boxes, scores, 0.5)  # unsupported operator: npu::npu_nms_rotated
