"""Oracle of the contracts, in numpy and float64, written from their text alone: it uses no code of the kernels."""

from __future__ import annotations

import functools

import numpy as np


def sees(i, j, queries, keys, *, causal=False, window=None, borders=None):
    """Whether query i attends to key j."""
    at = i + keys - queries
    if (causal or window is not None) and j > at:
        return False
    if window is not None and j <= at - window:
        return False
    if borders is not None:
        return sum(i >= border for border in borders[1:]) == sum(j >= border for border in borders[1:])
    return True


@functools.cache
def visible(queries, keys, **rules):
    """[Q, K] of ``sees``."""
    return np.array([[sees(i, j, queries, keys, **rules) for j in range(keys)] for i in range(queries)], dtype=bool)


def softmax(scores, seen):
    """Softmax of each row over its visible entries; zeros for a fully masked row."""
    result = np.zeros_like(scores)
    for row in np.ndindex(scores.shape[:-1]):
        these = scores[row][seen[row]]
        these = these[these > -np.inf]
        if these.size:
            inside = seen[row] & (scores[row] > -np.inf)
            weights = np.exp(scores[row][inside] - these.max())
            result[row][inside] = weights / weights.sum()
    return result


def attention_terms(q, k, v, grad, weights, scale, bias):
    """Return the magnitudes of the sums in ``attention``, and those of the scores, which its exponentials magnify."""
    q, k, v, grad, scale = (np.abs(each) for each in (q, k, v, grad, scale))
    shared = q.shape[1] // k.shape[1]
    key, value = (each.repeat(shared, 1) for each in (k, v))

    def of_key_heads(each):
        return each.reshape(len(k), k.shape[1], shared, *each.shape[2:]).sum(2)

    scores = scale * q @ key.swapaxes(-1, -2)
    if bias is not None:
        scores = scores + np.where(np.isfinite(bias), np.abs(bias), 0.0)
    _, of_scores = masked_softmax_terms(weights, grad @ value.swapaxes(-1, -2), scale=1.0)
    back = of_scores.swapaxes(-1, -2)
    return {
        "output": weights @ value,
        "dq": scale * of_scores @ key,
        "dk": of_key_heads(scale * back @ q),
        "dv": of_key_heads(weights.swapaxes(-1, -2) @ grad),
        "dbias": of_scores,
        "scores": (scores * (weights > 0)).max(initial=0.0),
    }


def attention(q, k, v, grad, *, scale, masked_out=None, bias=None, sizes=None, **rules):
    """Return (output, dq, dk, dv, dbias) for the gradient ``grad`` of the output; ``sizes`` gets their terms."""
    shared = q.shape[1] // k.shape[1]
    scores = np.zeros((*q.shape[:3], k.shape[2]))
    for b, n in np.ndindex(q.shape[:2]):
        scores[b, n] = scale * q[b, n] @ k[b, n // shared].T
    if bias is not None:
        scores = scores + bias
    seen = np.broadcast_to(visible(q.shape[2], k.shape[2], **rules), scores.shape).copy()
    if masked_out is not None:
        seen &= ~np.broadcast_to(masked_out, scores.shape)
    weights = softmax(scores, seen)
    if sizes is not None:
        sizes.update(attention_terms(q, k, v, grad, weights, scale, bias))
    output, of_scores = np.zeros((*q.shape[:3], v.shape[3])), np.zeros_like(scores)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for b, n in np.ndindex(q.shape[:2]):
        m, w, g = n // shared, weights[b, n], grad[b, n]
        output[b, n] = w @ v[b, m]
        along = g @ v[b, m].T
        of_scores[b, n] = w * (along - (along * w).sum(-1, keepdims=True))
        dv[b, m] += w.T @ g
        dq[b, n] = scale * of_scores[b, n] @ k[b, m]
        dk[b, m] += scale * of_scores[b, n].T @ q[b, n]
    return output, dq, dk, dv, of_scores


def masked_softmax(x, grad, *, scale, masked_out=None, causal=False):
    """Return (probabilities, dx)."""
    seen = np.broadcast_to(visible(*x.shape[-2:], causal=causal), x.shape).copy()
    if masked_out is not None:
        seen &= ~np.broadcast_to(masked_out, x.shape)
    weights = softmax(scale * x, seen)
    return weights, scale * weights * (grad - (grad * weights).sum(-1, keepdims=True))


def masked_softmax_terms(weights, grad, *, scale):
    """Return the magnitudes of the sums in ``masked_softmax``, from its probabilities: (probabilities, dx)."""
    grad = np.abs(grad)
    return weights, abs(scale) * weights * (grad + (grad * weights).sum(-1, keepdims=True))


def cross_entropy(logits, labels, *, ignore_index=-100, label_smoothing=0.0):
    """Return (loss of each token, gradient of each token's loss): [T], [T, V]."""
    tokens, columns = logits.shape
    losses, grads = np.zeros(tokens), np.zeros_like(logits)
    for t, label in enumerate(labels):
        if label == ignore_index:
            continue
        target = np.full(columns, label_smoothing / columns)
        target[label] += 1 - label_smoothing
        shifted = logits[t] - logits[t].max()
        logs = shifted - np.log(np.exp(shifted).sum())
        losses[t] = -(target * logs).sum()
        grads[t] = np.exp(logs) - target
    return losses, grads


def cross_entropy_terms(logits, labels, *, ignore_index=-100, label_smoothing=0.0):
    """Return the magnitudes of the sums in ``cross_entropy``: [T], [T, V]."""
    counted = (np.array(labels) != ignore_index).astype(float)
    # The maximum, the logarithm of a sum, the label's logit and the mean logit; an error of the sum is one of its log.
    losses = counted * (1 + np.log(logits.shape[1]) + 3 * np.abs(logits).max(-1))
    _, grads = cross_entropy(logits, labels, ignore_index=ignore_index, label_smoothing=label_smoothing)
    target = np.full_like(logits, label_smoothing / logits.shape[1])
    target[range(len(labels)), np.where(counted, labels, 0)] += 1 - label_smoothing
    return losses, np.abs(grads) + 2 * target * counted[:, None]


def swiglu(x, grad, bias=None):
    """Return (silu(a) b for the halves a, b of x + bias; dx, which summed over the rows is that of the bias)."""
    gate, value = np.split(x if bias is None else x + bias, 2, -1)
    share = 1 / (1 + np.exp(-gate))
    of_gate = grad * value * (share + gate * share * (1 - share))
    return gate * share * value, np.concatenate([of_gate, grad * gate * share], -1)


def swiglu_terms(x, grad, bias=None):
    """Return the magnitudes of the sums in ``swiglu``: (result, dx)."""
    gate, value = np.split(np.abs(x) if bias is None else np.abs(x) + np.abs(bias), 2, -1)
    share = 1 / (1 + np.exp(-np.split(x if bias is None else x + bias, 2, -1)[0]))
    # exp(gate) has the absolute error of the gate for its relative one.
    share, slope = share * (1 + gate), gate * share * (1 - share)
    grad = np.abs(grad)
    return gate * share * value, np.concatenate([grad * value * (share + slope * (2 + gate)), grad * gate * share], -1)


def rotary(x, cos, sin, grad, *, interleaved=False):
    """Return (x with the first R elements of its last axis rotated, dx)."""
    turned = cos.shape[-1]
    cos, sin = (np.broadcast_to(each, (*x.shape[:-1], turned)) for each in (cos, sin))
    result, dx = x.copy(), grad.copy()
    for pair in range(turned // 2):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + turned // 2)
        # Every angle is given twice, once for each element of a pair.
        result[..., a] = x[..., a] * cos[..., a] - x[..., b] * sin[..., a]
        result[..., b] = x[..., b] * cos[..., b] + x[..., a] * sin[..., b]
        dx[..., a] = grad[..., a] * cos[..., a] + grad[..., b] * sin[..., b]
        dx[..., b] = grad[..., b] * cos[..., b] - grad[..., a] * sin[..., a]
    return result, dx


def rotary_terms(x, cos, sin, grad, *, interleaved=False):
    """Return the magnitudes of the sums in ``rotary``: (result, dx)."""
    x, cos, sin, grad = (np.abs(each) for each in (x, cos, sin, grad))
    # One element of a pair is a difference, the other a sum.
    both = (rotary(x, cos, signed, grad, interleaved=interleaved) for signed in (sin, -sin))
    return tuple(np.maximum(*each) for each in zip(*both, strict=True))
