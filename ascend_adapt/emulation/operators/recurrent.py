"""npu_lstm, npu_lstm_data, npu_lstm_cell and npu_gru: one layer in one direction over all steps, with their gradients.

torch_npu's code for nn.LSTM and nn.GRU calls these operators once per layer and direction. Sources of the arithmetic:
op-plugin@517f2e7 op_plugin/ops/aclops/LstmKernelNpu.cpp, LstmCellKernelNpu.cpp and GruKernelNpu.cpp. Shapes: T time
steps, B sequences, I inputs, H hidden units.
"""

from __future__ import annotations

import torch

from ascend_adapt.emulation.operators.kernel import kernel
from ascend_adapt.emulation.operators.precision import wide
from ascend_adapt.emulation.operators.tensors import dtype, shape
from ascend_adapt.npu_limits import recurrent as limits

_DTYPES = (torch.float16, torch.float32)


@kernel("npu_lstm")
def lstm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    num_layers: int,
    dropout: float,
    train: bool,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    flag_seq: bool,
    direction: bool,
    seq_mask: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Return y, h and c, the gates i, j, f and o, and tanh(c) of every step, each [T, B, H].

    ``weight`` [I + H, 4H] and ``bias`` [4H] hold the gates in torch's order: input, forget, cell (j), output.
    """
    _require_no_dropout(train, dropout, num_layers)
    limits.DIRECTION.require(not (flag_seq or direction), f"flag_seq is {flag_seq}, direction is {direction}")
    _require_fit(input, weight, bias, h, c)
    return _lstm(input, weight, bias, h, c)


@kernel("npu_lstm_backward")
def lstm_backward(
    grady: torch.Tensor | None,
    gradh: torch.Tensor | None,
    gradc: torch.Tensor | None,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor,
    h_output: torch.Tensor,
    c_output: torch.Tensor,
    i: torch.Tensor,
    j: torch.Tensor,
    f: torch.Tensor,
    o: torch.Tensor,
    tanhc: torch.Tensor,
    y_output: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of input, weight, bias, h and c; only the last step of ``gradh`` and ``gradc`` is used."""
    return _lstm_backward(grady, gradh, gradc, input, weight, hx, cx, h_output, c_output, (i, j, f, o), tanhc)


@kernel("npu_lstm_data", host=("batch_sizes",))
def lstm_of_packed_sequences(
    input: torch.Tensor,
    batch_sizes: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    seq_mask: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    flag_seq: bool,
    direction: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the results of npu_lstm for padded sequences; after its end, a sequence keeps its state and y is zero.

    With ``direction``, the steps run backwards. ``batch_sizes`` [T] holds the number of sequences that have each step.
    """
    _require_no_dropout(train, dropout, num_layers)
    _require_fit(input, weight, bias, h, c)
    found = _lstm_of_packed(batch_sizes, direction, *map(wide, (input, weight, bias, h, c)))
    return tuple(one.to(input.dtype) for one in found)


@kernel("npu_lstm_data_backward", host=("batch_sizes",))
def lstm_of_packed_sequences_backward(
    grady_opt: torch.Tensor | None,
    gradh_opt: torch.Tensor | None,
    gradc_opt: torch.Tensor | None,
    input: torch.Tensor,
    batch_sizes: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    init_h: torch.Tensor,
    init_c: torch.Tensor,
    y: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    i: torch.Tensor,
    j: torch.Tensor,
    f: torch.Tensor,
    o: torch.Tensor,
    tanhc: torch.Tensor,
    flag_direction: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of input, weight, bias, h and c; only the last step of ``gradh`` and ``gradc`` is used."""
    given = [wide(one).requires_grad_() for one in (input, weight, bias, init_h, init_c)]
    with torch.enable_grad():
        outputs, states, cells, *_ = _lstm_of_packed(batch_sizes, flag_direction, *given)
        of_outputs = torch.zeros_like(outputs) if grady_opt is None else wide(grady_opt)
        slopes = (of_outputs, _last(gradh_opt, h), _last(gradc_opt, c))
        found = torch.autograd.grad((outputs, states[-1], cells[-1]), given, slopes)
    return tuple(one.to(input.dtype) for one in found)


@kernel("npu_lstm_cell")
def lstm_cell(
    input: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    b_ih: torch.Tensor | None,
    b_hh: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """Return y [1, B, H], h and c [B, H], and the gates and tanh(c) [1, B, H] of one step.

    ``w_ih`` is [I, 4H] and ``w_hh`` [H, 4H].
    """
    weight = torch.cat((w_ih, w_hh))
    bias = sum((wide(one) for one in (b_ih, b_hh) if one is not None), wide(weight.new_zeros(weight.shape[1])))
    _require_fit(input[None], weight, bias, h[None], c[None])
    y, after, cell, *gates = _lstm(input[None], weight, bias, h[None], c[None])
    return y, after[0], cell[0], *gates


@kernel("npu_lstm_cell_backward")
def lstm_cell_backward(
    grady: torch.Tensor | None,
    gradh: torch.Tensor | None,
    gradc: torch.Tensor | None,
    input: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    h_output: torch.Tensor,
    c_output: torch.Tensor,
    i: torch.Tensor,
    j: torch.Tensor,
    f: torch.Tensor,
    o: torch.Tensor,
    tanhc: torch.Tensor,
    y_output: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of input, w_ih, w_hh, b_ih, b_hh, h and c."""
    weight = torch.cat((w_ih, w_hh))
    grad_y, grad_h, grad_c = (None if grad is None else grad.reshape(1, *h.shape) for grad in (grady, gradh, gradc))
    states = (h[None], c[None], h_output.reshape(1, *h.shape), c_output.reshape(1, *c.shape))
    dx, dw, db, dh, dc = _lstm_backward(grad_y, grad_h, grad_c, input[None], weight, *states, (i, j, f, o), tanhc)
    return dx[0], dw[: w_ih.shape[0]], dw[w_ih.shape[0] :], db, db, dh[0], dc[0]


@kernel("npu_gru")
def gru(
    input: torch.Tensor,
    hx: torch.Tensor,
    weight_input: torch.Tensor,
    weight_hidden: torch.Tensor,
    bias_input: torch.Tensor,
    bias_hidden: torch.Tensor,
    num_layers: int,
    dropout: float,
    train: bool,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    seq_length: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Return y, h, the update gate, the reset gate, the new state and its hidden part for every step, each [T, B, H].

    ``weight_input`` [I, 3H] and ``weight_hidden`` [H, 3H] hold reset, update and new state, in torch's order.
    """
    _require_no_dropout(train, dropout, num_layers)
    both = torch.cat((weight_input, weight_hidden))
    _require_fit(input, both, bias_input, hx, gates=3)
    h, steps = wide(hx).reshape(input.shape[1], -1), []
    for x in (wide(input) @ wide(weight_input) + wide(bias_input)).unbind():
        of_input = x.chunk(3, -1)
        of_hidden = (h @ wide(weight_hidden) + wide(bias_hidden)).chunk(3, -1)
        reset, update = (torch.sigmoid(of_input[at] + of_hidden[at]) for at in (0, 1))
        new = torch.tanh(of_input[2] + reset * of_hidden[2])
        h = (1 - update) * new + update * h
        steps.append((h, h, update, reset, new, of_hidden[2]))
    return tuple(torch.stack(one).to(input.dtype) for one in zip(*steps, strict=True))


@kernel("npu_gru_backward")
def gru_backward(
    grady: torch.Tensor | None,
    gradh: torch.Tensor | None,
    input: torch.Tensor,
    weight_input: torch.Tensor,
    weight_hidden: torch.Tensor,
    bias_input: torch.Tensor,
    bias_hidden: torch.Tensor,
    hx: torch.Tensor,
    h_output: torch.Tensor,
    output_updata: torch.Tensor,
    output_reset: torch.Tensor,
    output_new: torch.Tensor,
    hidden_new: torch.Tensor,
    seq_length: torch.Tensor,
    y_output: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of weight_input, weight_hidden, input, bias_input, bias_hidden and hx."""
    before = torch.cat((wide(hx).reshape(1, *h_output.shape[1:]), wide(h_output)[:-1]))
    dh = _last(gradh, h_output)
    of_input, of_hidden = [], []
    for at in reversed(range(input.shape[0])):
        dh = dh if grady is None else dh + wide(grady[at])
        update, reset, new, hidden = (wide(one[at]) for one in (output_updata, output_reset, output_new, hidden_new))
        d_new = dh * (1 - update) * (1 - new**2)
        d_update = dh * (before[at] - new) * update * (1 - update)
        d_reset = d_new * hidden * reset * (1 - reset)
        of_input.append(torch.cat((d_reset, d_update, d_new), -1))
        of_hidden.append(torch.cat((d_reset, d_update, d_new * reset), -1))
        dh = dh * update + of_hidden[-1] @ wide(weight_hidden).T
    gates, hidden_gates = (torch.stack(one[::-1]) for one in (of_input, of_hidden))
    results = (
        _outer(wide(input), gates),
        _outer(before, hidden_gates),
        gates @ wide(weight_input).T,
        gates.sum((0, 1)),
        hidden_gates.sum((0, 1)),
        dh.reshape(hx.shape),
    )
    return tuple(one.to(input.dtype) for one in results)


def _require_no_dropout(train: bool, dropout: float, num_layers: int) -> None:
    limits.DROPOUT.require(not (train and dropout and num_layers > 1), f"dropout is {dropout} in {num_layers} layers")


def _lstm(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, h: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    hidden, cell, steps = wide(h)[0], wide(c)[0], []
    of_input, of_hidden = wide(weight).split([input.shape[2], hidden.shape[1]])
    for x in (wide(input) @ of_input + wide(bias)).unbind():
        i, f, j, o = (x + hidden @ of_hidden).chunk(4, -1)
        i, f, j, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(j), torch.sigmoid(o)
        cell = f * cell + i * j
        tanhc = torch.tanh(cell)
        hidden = o * tanhc
        steps.append((hidden, hidden, cell, i, j, f, o, tanhc))
    return tuple(torch.stack(one).to(input.dtype) for one in zip(*steps, strict=True))


def _lstm_of_packed(
    batch_sizes: torch.Tensor,
    backwards: bool,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    hidden, cell, steps = h[0], c[0], []
    present = torch.arange(input.shape[1])[:, None] < batch_sizes[:, None, None]
    for at in reversed(range(len(input))) if backwards else range(len(input)):
        i, f, j, o = (torch.cat((input[at], hidden), -1) @ weight + bias).chunk(4, -1)
        i, f, j, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(j), torch.sigmoid(o)
        next_cell = f * cell + i * j
        tanhc = torch.tanh(next_cell)
        output = (o * tanhc) * present[at]
        hidden, cell = torch.where(present[at], output, hidden), torch.where(present[at], next_cell, cell)
        steps.append((output, hidden, cell, i, j, f, o, tanhc))
    return tuple(torch.stack(one) for one in zip(*(steps[::-1] if backwards else steps), strict=True))


def _lstm_backward(
    grady: torch.Tensor | None,
    gradh: torch.Tensor | None,
    gradc: torch.Tensor | None,
    input: torch.Tensor,
    weight: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    h_output: torch.Tensor,
    c_output: torch.Tensor,
    gates: tuple[torch.Tensor, ...],
    tanhc: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    inputs = torch.cat((wide(input), torch.cat((wide(h), wide(h_output)[:-1]))), -1)
    cells = torch.cat((wide(c), wide(c_output)[:-1]))
    dh, dc = _last(gradh, h_output), _last(gradc, c_output)
    slopes, of_inputs = [], []
    for at in reversed(range(input.shape[0])):
        i, j, f, o = (wide(gate[at]) for gate in gates)
        t = wide(tanhc[at])
        dh = dh if grady is None else dh + wide(grady[at])
        dc = dc + dh * o * (1 - t**2)
        of_gates = (dc * j * i * (1 - i), dc * cells[at] * f * (1 - f), dc * i * (1 - j**2), dh * t * o * (1 - o))
        slopes.append(torch.cat(of_gates, -1))
        dx, dh = (slopes[-1] @ wide(weight).T).split([input.shape[2], h.shape[2]], -1)
        of_inputs.append(dx)
        dc = dc * f
    slope = torch.stack(slopes[::-1])
    results = (torch.stack(of_inputs[::-1]), _outer(inputs, slope), slope.sum((0, 1)), dh[None], dc[None])
    return tuple(one.to(input.dtype) for one in results)


def _last(grad: torch.Tensor | None, output: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(wide(output[0])) if grad is None else wide(grad[-1])


def _outer(inputs: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    return inputs.flatten(0, 1).T @ gates.flatten(0, 1)


def _require_fit(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *states: torch.Tensor, gates: int = 4
) -> None:
    given = (input, weight, *states)
    known = all(one.dtype == input.dtype and one.dtype in _DTYPES for one in given)
    limits.DTYPES.require(known, f"input is {dtype(input)}, weight is {dtype(weight)}, h is {dtype(states[0])}")
    hidden = weight.shape[1] // gates
    fits = input.dim() == 3 and weight.shape[0] == input.shape[2] + hidden and bias.shape == weight.shape[1:]
    fits = fits and all(one.shape[-2:] == (input.shape[1], hidden) for one in states)
    found = f"input is {shape(input)}, weight is {shape(weight)}, bias is {shape(bias)}, h is {shape(states[0])}"
    limits.SHAPES.require(fits, found)
