"""Run with TRITON_INTERPRET=1: the Triton kernels on the CPU against the float32 and float64 references.

Prints one line a case; the test reads them. Only float32 is proved: the interpreter multiplies bfloat16 wrongly.
"""

import itertools

import torch

from dflash.kernels import reference_attention, reference_loss, triton_attention, triton_loss


def losses() -> None:
    for rows, hidden, vocabulary, softcap, bias in itertools.product(
        (0, 1, 7), (3, 16), (5, 131), (None, 4.0), (False, True)
    ):
        torch.manual_seed(rows + hidden + vocabulary)
        head, offset = torch.randn(vocabulary, hidden), torch.randn(vocabulary) if bias else None
        options = {"bias_V": offset, "softcap": softcap}
        labels, target = torch.randint(0, vocabulary, (rows,)), torch.randn(rows, hidden) * 3
        states, mix = torch.randn(rows, hidden) * 3, torch.randn(rows)
        for name, other in (("linear_cross_entropy", labels), ("linear_kl", target)):
            found = []
            for module, kind in ((triton_loss, torch.float32), (reference_loss, torch.float64)):
                own = states.to(kind).requires_grad_()
                given = other if other.dtype == torch.long else other.to(kind)
                typed = {**options, "bias_V": None if offset is None else offset.to(kind)}
                values, _ = getattr(module, name)(own, head.to(kind), given, **typed)
                (gradient,) = torch.autograd.grad((values * mix.to(kind)).sum(), own)
                found.append((values.detach().double(), gradient.double()))
            say(f"{name} {rows} {hidden} {vocabulary} {softcap} {bias}", *found)


def attention() -> None:
    for anchors, slots, group, window in itertools.product((0, 1, 5), (2, 4), (1, 3), (None, 3)):
        torch.manual_seed(anchors + slots + group)
        shapes = [
            (anchors, slots, 2 * group, 16),
            (2, 13, 2, 16),
            (2, 13, 2, 16),
            (anchors, slots, 2, 16),
            (anchors, slots, 2, 16),
        ]
        tensors = [torch.randn(shape) for shape in shapes]
        places = torch.randint(0, 26, (anchors,)).sort().values
        rows, at = places // 13, places % 13
        starts = (torch.rand(anchors) * (at + 1)).long()
        mix = torch.randn(shapes[0])
        found = []
        for module, kind in ((triton_attention, torch.float32), (reference_attention, torch.float64)):
            own = [each.to(kind).requires_grad_() for each in tensors]
            out = module.anchor_attention(*own, rows, starts, at, scale=0.3, window=window)
            gradients = torch.autograd.grad((out * mix.to(kind)).sum(), own)
            found.append((out.detach().double(), torch.cat([each.double().flatten() for each in gradients])))
        say(f"attention {anchors} {slots} {group} {window}", *found)


def say(name: str, ours: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    assert all(bool(each.isfinite().all()) for each in ours), f"{name}: not finite"
    errors = [
        float((a - b).norm() / b.norm().clamp(min=1e-6)) if a.numel() else 0.0
        for a, b in zip(ours, wanted, strict=True)
    ]
    print(f"{max(errors):.2e} {name}")


if __name__ == "__main__":
    # fills whatever is allocated without values with NaN, so that an element that no kernel writes is seen
    torch.use_deterministic_algorithms(True)
    assert bool(torch.zeros(2).new_empty(3).isnan().all())
    losses()
    attention()
