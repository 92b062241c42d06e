import torch

model = torch.nn.Linear(4, 4).npu()
model(torch.ones(1, 4, device="npu")).sum().backward()
clip = torch.nn.utils.clip_grad_norm_
clip(model.parameters(), 1.0, error_if_nonfinite=True)  # host-device sync: aten::_local_scalar_dense
