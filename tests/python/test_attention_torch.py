"""attention in torch: the portable backend, gradients, torch.compile, the patch of SDPA, transformers, CUDA graphs."""

from __future__ import annotations

import importlib
import math
import threading

import attention_calling as attending
import attention_cases as cases
import attention_oracle as oracle
import calling
import numpy as np
import pytest
from test_attention import poisoned
from test_errors import says

import robocache as rc

torch = pytest.importorskip("torch")
F = torch.nn.functional

DIFFERENTIABLE = [name for name in cases.BY_NAME if cases.problem_of(name).append is None]


@pytest.mark.parametrize("name", list(cases.BY_NAME))
def test_portable(name):
    attending.assert_close(attending.attend(cases.problem_of(name), "torch", calling.to_torch), name, name)


@pytest.mark.parametrize("name", list(cases.BY_NAME))
def test_portable_on_cuda(name, cuda):
    attending.assert_close(attending.attend(cases.problem_of(name), "torch", cuda), name, name)


@pytest.mark.parametrize("name", list(cases.BY_NAME))
def test_portable_lets_nothing_through(name):
    answer = attending.attend(poisoned(name), "torch", calling.to_torch)
    clean = attending.attend(cases.problem_of(name), "torch", calling.to_torch)
    calling.assert_same_bytes(answer.out, clean.out, name)
    calling.assert_same_bytes(answer.lse, clean.lse, name)


# ---- gradients


def flat(parts):
    return [part for part in parts if not isinstance(part, list)] + [
        x for part in parts if isinstance(part, list) for x in part
    ]


def bring_to(backend: str):
    """Tensors, so that they can have gradients."""
    return calling.to_cuda if backend == "cuda" else calling.to_torch


def gradients(
    problem: cases.Problem, backend, convert, d_out: np.ndarray, d_lse: np.ndarray | None
) -> list[np.ndarray]:
    """Of q, all keys, all values."""
    arrays, options = attending.arguments(problem, convert)
    leaves = flat(arrays)
    for leaf in leaves:
        leaf.requires_grad_()
    out, lse = rc.attention(*arrays, backend=backend, return_lse=True, **options)
    given = [convert(d_out.astype(problem.q.dtype))]
    if d_lse is not None:
        given.append(convert(d_lse.astype(np.float32)))
    made = torch.autograd.grad([out, lse][: len(given)], leaves, given)
    for part, leaf in zip(made, leaves, strict=True):
        assert part.dtype == leaf.dtype
        assert part.shape == leaf.shape
    return [calling.to_numpy(part) for part in made]


def upstream(problem: cases.Problem) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(11)
    out, lse = oracle.attend(problem)
    d_out = cases.normal(generator, out.shape, "float32").astype(problem.q.dtype)
    return d_out.astype(np.float64), np.where(np.isfinite(lse), generator.standard_normal(lse.shape), 0)


def math_gradients(problem: cases.Problem, d_out: np.ndarray) -> list[np.ndarray]:
    """torch's math path in the same dtype, of padded problems without lengths."""
    q, *rest = [calling.to_torch(part) for part in (problem.q, *problem.keys, *problem.values)]
    leaves = [part.requires_grad_() for part in (q, *rest)]
    first = problem.options.get("layout") == "bqhd"
    keys, values = rest[: len(problem.keys)], rest[len(problem.keys) :]
    turned = [[part.transpose(1, 2) if first else part for part in parts] for parts in ([q], keys, values)]
    seen = torch.from_numpy(np.stack([s.seen for s in oracle.sequences(problem)]))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        scale = problem.options.get("scale")
        k, v = (torch.cat(parts, 2) for parts in turned[1:])
        out = attending.grouped_sdpa(turned[0][0], k, v, attn_mask=seen, scale=scale)
    given = calling.to_torch(d_out.astype(problem.q.dtype))
    made = torch.autograd.grad(out.transpose(1, 2) if first else out, leaves, given)
    return [calling.to_numpy(part) for part in made]


def assert_gradients(problem: cases.Problem, made: list[np.ndarray], d_out, d_lse, what: str) -> None:
    """On average at most 1.5 times what torch's math path is off by, at most twice (attending.bounds says why), or two
    roundings of what was summed: of the weights, and of the gradient.

    The weights come back as exp(score - lse), and lse is a float32: where logits are large, its step counts.
    """
    expected = flat(oracle.differentiate(problem, d_out, d_lse))
    sizes = flat(oracle.differentiate(problem, d_out, d_lse, sizes=True))
    lse = oracle.attend(problem)[1]
    step = attending.SINGLE * max(1.0, float(np.abs(lse[np.isfinite(lse)]).max(initial=0)))
    unit = attending.half_unit(problem.q.dtype)
    plain = problem.q_offsets is None and problem.lengths is None and len(problem.q) > 0 and not d_lse.any()
    theirs = math_gradients(problem, d_out) if plain else [np.zeros(part.shape) for part in expected]
    for k, (mine, exact, size) in enumerate(zip(made, expected, sizes, strict=True)):
        other = np.nan_to_num(theirs[k].astype(np.float64) - exact) if plain else np.zeros(exact.shape)
        for measure, factor in ((attending.spread, 1.5), (attending.worst, 2.0)):
            error = measure(mine, exact)
            most = max(factor * measure(other, 0 * other), 2 * (unit + step) * measure(size, 0 * size)) + 1e-30
            assert error <= most, f"{what}: gradient {k} is off by {error:.3g}, at most {most:.3g}"


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name, backend):
    where, convert = backend[0], bring_to(backend[0])
    problem = cases.problem_of(name)
    d_out, d_lse = upstream(problem)
    made = gradients(problem, where, convert, d_out, None)
    assert_gradients(problem, made, d_out, np.zeros_like(d_lse), f"{name} on {where}")
    again = gradients(problem, where, convert, d_out, None)
    for left, right in zip(made, again, strict=True):
        calling.assert_same_bytes(left, right, f"{name}: again")
    assert_gradients(problem, gradients(problem, where, convert, d_out, d_lse), d_out, d_lse, f"{name} with lse")


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_portable_gradients(name):
    problem = cases.problem_of(name)
    d_out, d_lse = upstream(problem)
    assert_gradients(problem, gradients(problem, "torch", calling.to_torch, d_out, d_lse), d_out, d_lse, name)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_what_no_query_may_see_reaches_no_gradient(name, backend):
    problem = cases.problem_of(name)
    d_out, d_lse = upstream(problem)
    for where in (backend[0], "torch"):
        clean = gradients(problem, where, bring_to(where), d_out, d_lse)
        dirty = gradients(poisoned(name), where, bring_to(where), d_out, d_lse)
        for left, right in zip(dirty, clean, strict=True):
            calling.assert_same_bytes(left, right, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_query_does_see_reaches_every_gradient(dtype, backend):
    device = "cuda" if backend[0] == "cuda" else "cpu"
    q, k, v = (torch.randn(1, 2, 40, 32, dtype=dtype, device=device) for _ in range(3))
    k[0, 0, 7, 3] = torch.nan
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    rc.attention(*leaves, causal=True, backend=backend[0]).sum().backward()
    for tensor in leaves:
        reached = tensor.grad[0].isnan().any(-1).tolist()
        first = 7 if tensor is q else 0  # every key is seen by a query that sees the seventh
        assert reached[0][first:] == [True] * (40 - first)
        assert reached[1] == [False] * 40
        if backend[0] != "cuda" or dtype == torch.float32:  # else queries in the same tile may be reached, too
            assert reached[0][:first] == [False] * first


@pytest.mark.parametrize("name", [name for name in cases.BY_NAME if "left out" in name])
def test_what_lies_in_no_sequence_gets_no_gradient(name, backend):
    problem = cases.problem_of(name)
    d_out, d_lse = upstream(problem)
    for where in (backend[0], "torch"):
        made = gradients(problem, where, bring_to(where), d_out, d_lse)
        for part, offsets in zip(made, (problem.q_offsets, problem.k_offsets, problem.k_offsets), strict=True):
            assert (part[: offsets[0]] == 0).all()
            assert (part[offsets[-1] :] == 0).all()


def qkv(*, batch=2, heads=4, kv_heads=2, queries=9, keys=20, width=32, dtype=torch.float32, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, heads, queries, width), (batch, kv_heads, keys, width), (batch, kv_heads, keys, width))
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def test_only_what_is_wanted_gets_a_gradient():
    q, k, v = qkv()
    k.requires_grad_()
    out = rc.attention(q, k, v)
    out.sum().backward()
    assert k.grad is not None
    assert q.grad is None
    rc.attention(q, k, v, return_lse=True)[1].sum().backward()  # nothing reaches out


def test_second_derivatives_are_refused():
    q, k, v = (part.requires_grad_() for part in qkv())
    (gradient,) = torch.autograd.grad(rc.attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_saved_tensor_that_was_written_is_noticed():
    q, k, v = (part.requires_grad_() for part in qkv())
    out = rc.attention(q, k, v)
    with torch.no_grad():
        rc.attention(q.clone(), k, v, out=q.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_torch_func():
    q, k, v = qkv()
    given = torch.func.grad(lambda q: rc.attention(q, k, v, causal=True).square().sum())(q)
    leaf = q.clone().requires_grad_()
    rc.attention(leaf, k, v, causal=True).square().sum().backward()
    torch.testing.assert_close(given, leaf.grad)


def test_out_and_gradients():
    q, k, v = qkv()
    q.requires_grad_()
    says(
        ValueError,
        ["attention: a result in out has no gradient"],
        rc.attention,
        q,
        k,
        v,
        out=torch.empty_like(q.detach()),
    )
    with torch.no_grad():
        rc.attention(q, k, v, out=torch.empty_like(q))
    parts = ["attention: append writes in place and has no gradients"]
    says(ValueError, parts, rc.attention, q, k, v, lengths=[3, 3], append=(k[:, :, :1], v[:, :, :1]))
    says(
        ValueError,
        ["attention: out is torch.float32 [2]"],
        rc.attention,
        q.detach(),
        k,
        v,
        out=torch.empty(2),
        backend="torch",
    )


def test_portable_says_what_is_wrong_with_the_words_of_the_engine():
    q, k, v = qkv()
    pairs = [
        (ValueError, ["attention: lengths[1] = 99"], {"lengths": [0, 99]}),
        (ValueError, ["attention: key_valid has shape [3]"], {"mask": rc.Mask(key_valid=torch.ones(3, dtype=bool))}),
        (
            ValueError,
            ["attention: mask.query_rank without mask.key_rank"],
            {"mask": rc.Mask(torch.zeros(9, dtype=torch.int32))},
        ),
        (ValueError, ["attention: layout is 'hbqd'"], {"layout": "hbqd"}),
    ]
    for error, parts, options in pairs:
        for backend in (None, "torch"):
            says(error, parts, rc.attention, q, k, v, backend=backend, **options)


def test_portable_computes_in_float32_inside_of_autocast():
    q, k, v = qkv()
    expected = rc.attention(q, k, v, backend="torch")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rc.attention(q, k, v, backend="torch"), expected)


# ---- torch.compile


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize(
    "name", ["every mask, segments", "packed, causal", "lengths, causal", "bqhd", "dense (1, 4, 17, 33)"]
)
def test_compile(name, backend):
    problem = cases.problem_of(name)
    d_out, d_lse = upstream(problem)

    def call(*leaves):
        arrays = leaves if len(problem.keys) == 1 else (leaves[0], list(leaves[1:4]), list(leaves[4:]))
        out, lse = rc.attention(*arrays, return_lse=True, backend=backend, **options)
        return out, torch.where(lse.isfinite(), lse, 0)

    arrays, options = attending.arguments(problem, calling.to_torch)
    leaves = [part.requires_grad_() for part in flat(arrays)]
    eager, traced = call(*leaves), compiled(call)(*leaves)
    for left, right in zip(traced, eager, strict=True):
        assert torch.equal(left, right)
    given = [calling.to_torch(d_out.astype(np.float32)), calling.to_torch(d_lse.astype(np.float32))]
    expected = torch.autograd.grad(eager, leaves, given)
    for left, right in zip(torch.autograd.grad(traced, leaves, given), expected, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6 if backend else 0)


@pytest.mark.parametrize("backend", [None, "torch"])
def test_compile_append(backend):
    problem = cases.problem_of("append with a mask")
    arrays, options = attending.arguments(problem, calling.to_torch)
    again, _ = attending.arguments(problem, calling.to_torch)
    expected = rc.attention(*arrays, backend=backend, **options)
    made = compiled(lambda *arrays: rc.attention(*arrays, backend=backend, **options))(*again)
    assert torch.equal(made, expected)
    for mine, theirs in zip(again[1:], arrays[1:], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"scale": 0}, "scale is 0; None is 1 / sqrt"), ({"layout": "bhdq"}, "layout is 'bhdq'; expected bhqd or bqhd")],
)
def test_compile_refuses_options(options, sentence):
    with pytest.raises(Exception, match=sentence):
        compiled(lambda q, k, v: rc.attention(q, k, v, **options))(*qkv())


def test_compile_with_sizes_that_change():
    torch._dynamo.reset()
    call = torch.compile(
        lambda q, k, v: rc.attention(q, k, v, causal=True), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for queries, keys in ((5, 9), (8, 8), (3, 40)):
        arrays = qkv(queries=queries, keys=keys)
        assert torch.equal(call(*arrays), rc.attention(*arrays, causal=True))


def test_compile_a_mask_of_openpi():
    pad = torch.rand(2, 20, generator=torch.Generator().manual_seed(1)) < 0.8
    starts = torch.rand(2, 20, generator=torch.Generator().manual_seed(2)) < 0.3

    def call(q, k, v, pad, starts):
        return rc.attention(q, k, v, mask=rc.Mask.from_openpi(pad, starts).last_queries(9))

    arrays = (*qkv(), pad, starts)
    assert torch.equal(compiled(call)(*arrays), call(*arrays))


class WithRanks(torch.nn.Module):
    def forward(self, q, k, v, query_rank, key_rank):
        return rc.attention(q, k, v, mask=rc.Mask(query_rank, key_rank))


@pytest.mark.parametrize("way", ["compiled", "changing sizes", "exported", "fake"])
@pytest.mark.parametrize("name", list(cases.WIDE_RANKS))
def test_traced_ranks_may_be_any_int64(name, way):
    """Nobody can look at a traced tensor's numbers: they must compare exactly all the same."""
    query, key, seen = (torch.from_numpy(part) for part in cases.wide_ranks(name))
    arrays = qkv(batch=2, queries=3, keys=5)
    expected = rc.attention(*arrays, mask=seen)
    torch._dynamo.reset()
    given = (*arrays, query, key)
    if way == "fake":
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert WithRanks()(*map(mode.from_tensor, given)).shape == expected.shape
        return
    if way == "exported":
        call = torch.export.export(WithRanks(), given).module()
    else:
        call = torch.compile(WithRanks(), fullgraph=True, dynamic=way == "changing sizes", backend="eager")
    torch.testing.assert_close(call(*given), expected)


@pytest.mark.parametrize("name", list(cases.WIDE_RANKS))
def test_ranks_on_cuda_may_be_any_int64(name, cuda):
    query, key, seen = map(cuda, cases.wide_ranks(name))
    arrays = [part.cuda() for part in qkv(batch=2, queries=3, keys=5)]
    expected = rc.attention(*arrays, mask=seen)
    torch.cuda.set_sync_debug_mode("error")
    try:
        mask = rc.Mask(query, key)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(rc.attention(*arrays, mask=mask), expected)


def test_operators_are_sound():
    q, k, v = (part.requires_grad_() for part in qkv())
    from robocache._torch import attention

    tensors, call = attention.pack(q, [k, v], None, {}, (True, None, None, "bhqd", True, None))
    torch.library.opcheck(torch.ops.robocache.attention.default, (tensors, *call))
    with torch.no_grad():
        tensors, call = attention.pack(
            q.detach(), [], None, {"lengths": torch.tensor([3, 4])}, (True, None, None, "bhqd", True, None)
        )
        new = torch.randn(2, 2, 1, 32)
        torch.library.opcheck(
            torch.ops.robocache.attention_append.default, (k.detach(), v.detach(), new, new, tensors, *call)
        )


def test_meta_tensors():
    q, k, v = (part.to("meta") for part in qkv())
    out, lse = rc.attention(q, k, v, return_lse=True)
    assert (out.shape, lse.shape) == (q.shape, (2, 4, 9))


# ---- the patch


@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (5, 20), (20, 5)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_patched_sdpa(queries, keys, is_causal):
    q, k, v = (part.requires_grad_() for part in qkv(queries=queries, keys=keys))
    expected = attending.grouped_sdpa(q, k, v, is_causal=is_causal)
    wanted = torch.autograd.grad(expected.square().sum(), (q, k, v))
    with rc.attention_patch(always=True):
        made = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
        assert "Attention" in type(made.grad_fn).__name__
        assert "ScaledDotProduct" not in type(made.grad_fn).__name__
    torch.testing.assert_close(made, expected)
    for left, right in zip(torch.autograd.grad(made.square().sum(), (q, k, v)), wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.fixture
def served(monkeypatch):
    """How often ours ran inside of the patch."""
    from robocache._attention import patch

    calls = []
    original = patch.attention
    monkeypatch.setattr(patch, "attention", lambda *a, **o: (calls.append(1), original(*a, **o))[1])
    return calls


@pytest.mark.parametrize(
    "shape", [(9, 20), (1, 20), (1, 1, 9, 20), (2, 1, 1, 20), (1, 1, 1, 20), (2, 4, 9, 20), (1, 4, 1, 20)]
)
def test_patched_sdpa_with_masks(shape, served):
    q, k, v = qkv(kv_heads=4)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(4)) < 0.6
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.5)
    with rc.attention_patch(always=True):
        torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.5), expected)
    assert served == [1]


def test_patched_sdpa_falls_back(served):
    q, k, v = qkv(kv_heads=4)
    odd = [part[..., :20].contiguous() for part in (q, k, v)]
    calls = [
        lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(9, 20)),
        lambda: F.scaled_dot_product_attention(*odd),
        lambda: F.scaled_dot_product_attention(q.double(), k.double(), v.double()),
        lambda: F.scaled_dot_product_attention(q[0], k[0], v[0]),
        lambda: F.scaled_dot_product_attention(q, k, v[..., :16]),
        lambda: F.scaled_dot_product_attention(q, k, v, scale=0.0),
        lambda: F.scaled_dot_product_attention(q, k, v, scale=math.inf).isnan(),
    ]
    expected = [call() for call in calls]
    with rc.attention_patch(always=True):
        for call, right in zip(calls, expected, strict=True):
            assert torch.equal(call(), right)
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        for dtype, other in ((torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16)):
            with torch.autocast("cpu", dtype):
                for given in (torch.float32, other):  # torch makes one dtype of all
                    made = F.scaled_dot_product_attention(*(part.to(given) for part in (q, k, v)))
                    assert made.dtype == dtype
    with rc.attention_patch():
        F.scaled_dot_product_attention(q, k, v)  # on the CPU it is not asked whether it is faster
    assert served == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_patched_sdpa_leaves_nested_tensors_alone(layout, served):
    parts = [torch.randn(n, 4, 64, generator=torch.Generator().manual_seed(n)) for n in (3, 5)]
    if layout == torch.strided:
        x = torch.nested.nested_tensor([part.transpose(0, 1).contiguous() for part in parts])
    else:
        x = torch.nested.nested_tensor(parts, layout=layout).transpose(1, 2)
    expected = F.scaled_dot_product_attention(x, x, x)
    with rc.attention_patch(always=True):
        made = F.scaled_dot_product_attention(x, x, x)
    assert served == []
    for left, right in zip(made.unbind(), expected.unbind(), strict=True):
        assert torch.equal(left, right)


def test_patches_nest_and_hold_for_every_thread(served):
    original = F.scaled_dot_product_attention
    q, k, v = qkv(kv_heads=4)
    with rc.attention_patch(always=True):
        with rc.attention_patch():
            with rc.attention_patch(always=True):
                pass
            F.scaled_dot_product_attention(q, k, v)
            assert served == []
        F.scaled_dot_product_attention(q, k, v)
        assert served == [1]
        thread = threading.Thread(target=F.scaled_dot_product_attention, args=(q, k, v))
        thread.start()
        thread.join()
        assert served == [1, 1]
        with pytest.raises(ZeroDivisionError), rc.attention_patch():
            raise ZeroDivisionError
        assert F.scaled_dot_product_attention is not original
    assert F.scaled_dot_product_attention is original


def test_a_module_inside_of_the_patch(served):
    layer = torch.nn.TransformerEncoderLayer(128, 2, 64, dropout=0.0, batch_first=True)
    x = torch.randn(2, 7, 128, generator=torch.Generator().manual_seed(0))
    expected = layer(x)
    with rc.attention_patch(always=True):
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    assert served == [1]


def test_compile_inside_of_the_patch():
    q, k, v = qkv(kv_heads=4)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    with rc.attention_patch(always=True):
        made = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))(q, k, v)
    torch.testing.assert_close(made, expected)


def test_compile_inside_of_the_patch_with_sizes_that_change():
    torch._dynamo.reset()
    call = torch.compile(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for queries, keys in ((9, 9), (5, 20), (20, 5)):
        arrays = qkv(queries=queries, keys=keys, kv_heads=4)
        expected = F.scaled_dot_product_attention(*arrays, is_causal=True)
        with rc.attention_patch(always=True):
            torch.testing.assert_close(call(*arrays), expected)


def test_the_patch_on_cuda(cuda, served):
    q, k, v = qkv(kv_heads=4, dtype=torch.bfloat16, device="cuda")
    expected = F.scaled_dot_product_attention(q, k, v)
    with rc.attention_patch():
        torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v), expected, rtol=2e-2, atol=2e-2)
        F.scaled_dot_product_attention(q.float(), k.float(), v.float())
    assert served == [1]


# ---- transformers


@pytest.mark.parametrize("through_the_patch", [False, True])
def test_transformers(through_the_patch, served, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    known = transformers.AttentionInterface._global_mapping
    monkeypatch.delitem(known, "robocache", raising=False)
    if through_the_patch:
        with rc.attention_patch():
            assert "robocache" in known
    else:
        rc.register_transformers()
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(1))
    padding = torch.ones(2, 12, dtype=torch.long)
    padding[0, :4] = 0
    for mask in (None, padding):
        with torch.no_grad():
            model.set_attn_implementation("sdpa")
            expected = model(tokens, attention_mask=mask).logits
            greedy = model.generate(tokens, attention_mask=padding, max_new_tokens=4, do_sample=False, pad_token_id=0)
            assert served == []
            model.set_attn_implementation("robocache")
            made = model(tokens, attention_mask=mask).logits
            assert len(served) == 2
            again = model.generate(tokens, attention_mask=padding, max_new_tokens=4, do_sample=False, pad_token_id=0)
        real = padding.bool() if mask is not None else slice(None)
        torch.testing.assert_close(made[real], expected[real], rtol=1e-4, atol=1e-4)
        assert torch.equal(again, greedy)
        served.clear()


def test_transformers_with_sinks_is_refused():
    from robocache._attention.patch import _for_transformers

    arrays = qkv(kv_heads=4)
    says(ValueError, ["attention sinks"], _for_transformers, None, *arrays, None, s_aux=torch.zeros(4))


# ---- CUDA


@pytest.mark.parametrize("number", range(12))
def test_shapes_of_policies_on_cuda(number, cuda):
    """The rows of the bench, which are the shapes that kernels are tuned for."""
    case = importlib.import_module("bench.attention").TABLE[number]
    inputs = case.make("cuda", 5)
    (exact,) = case.truth(inputs)
    theirs = case.other_call("SDPA math", inputs)()
    ours = case.ours(rc, inputs)()
    errors = [float((part.double() - exact).square().mean().sqrt()) for part in (ours, theirs)]
    assert errors[0] <= 1.5 * errors[1] + 1e-7, case.title
    assert torch.equal(case.ours(rc, inputs)(), ours), "another run"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("head_dim", "sizes"), [(64, (700, 0, 500)), (128, (2000, 2096)), (256, (0, 700, 500))])
def test_segments_of_many_tiles_on_cuda(head_dim, sizes, causal, cuda):
    """So many that all stages of a ring are used again; of head dim 128 by long tiles."""
    generator = torch.Generator("cuda").manual_seed(3)
    shapes = ((4, 16, places, head_dim) for places in (200, sum(sizes), sum(sizes)))
    q, k, v = (torch.randn(shape, device="cuda", generator=generator).bfloat16() for shape in shapes)
    made = rc.attention(q, list(k.split(sizes, 2)), list(v.split(sizes, 2)), causal=causal)
    torch.testing.assert_close(made, rc.attention(q, k, v, causal=causal), atol=2**-8, rtol=2**-7)


SEQUENCES = [  # batch, heads, key heads, queries, keys, head dim, causal, window
    (2, 2, 2, 64, 64, 64, False, None),
    (1, 8, 2, 50, 241, 64, False, None),
    (2, 2, 2, 10, 10, 64, True, None),
    (3, 2, 1, 602, 602, 64, False, None),
    (1, 1, 1, 2000, 1500, 64, False, None),
    (1, 4, 2, 300, 300, 64, True, None),
    (1, 2, 1, 333, 333, 64, False, (100, 5)),
    (2, 2, 2, 100, 130, 32, True, None),
    (2, 3, 3, 41, 300, 48, False, None),
    (1, 2, 2, 650, 700, 48, True, (70, None)),
    (2, 4, 4, 256, 256, 72, False, None),
    (1, 2, 2, 129, 300, 96, True, None),
    (1, 2, 2, 700, 650, 128, False, None),
    (1, 2, 2, 517, 700, 128, True, None),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SEQUENCES, ids=lambda shape: " ".join(map(str, shape)))
def test_gradients_of_whole_tiles_and_rests_on_cuda(shape, dtype, cuda):
    """Against float64, and the same bits again: the kernel for Hopper, with every number of tiles, and its window."""
    batch, heads, kv_heads, queries, keys, width, causal, window = shape
    generator = torch.Generator("cuda").manual_seed(5)
    sizes = ((heads, queries), (kv_heads, keys), (kv_heads, keys), (heads, queries))
    q, k, v, d_out = (
        torch.randn(batch, h, n, width, device="cuda", generator=generator).to(dtype).requires_grad_() for h, n in sizes
    )
    found = [torch.autograd.grad(rc.attention(q, k, v, causal=causal, window=window), (q, k, v), d_out) for _ in (1, 2)]
    ahead = torch.arange(keys, device="cuda") - torch.arange(queries, device="cuda")[:, None] - (keys - queries)
    left, right = window or (None, None)
    right = 0 if causal else right
    far = queries + keys
    seen = (ahead >= -(far if left is None else left)) & (ahead <= (far if right is None else right))
    wide = [part.detach().double().requires_grad_() for part in (q, k, v)]
    scores = wide[0] @ wide[1].repeat_interleave(heads // kv_heads, 1).transpose(-1, -2) / math.sqrt(width)
    weights = torch.softmax(scores.masked_fill(~seen, -math.inf), -1)
    exact = torch.autograd.grad(weights @ wide[2].repeat_interleave(heads // kv_heads, 1), wide, d_out.double())
    for first, again, truth in zip(*found, exact, strict=True):
        assert torch.equal(first, again)
        # P, dS and the result are rounded to the half type, each by half a unit at most, and not all one way.
        assert (first.double() - truth).norm() <= torch.finfo(dtype).eps * truth.norm()


def test_the_first_call_of_a_thread_takes_the_kernel_of_the_others(cuda):
    """A thread has no CUDA context until it needs one, and TMA's descriptors cannot be made without."""
    arrays = [
        part.requires_grad_() for part in qkv(dtype=torch.bfloat16, device="cuda", queries=200, keys=200, width=64)
    ]
    d_out = torch.randn_like(arrays[0])

    def call():
        out = rc.attention(*arrays)
        with torch.autograd.set_multithreading_enabled(False):  # in this thread
            return [out, *torch.autograd.grad(out, arrays, d_out)]

    call()
    expected = call()
    made = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: made.append(call()))
        thread.start()
        thread.join()
    assert len(made) == 3
    for answer in made:
        assert all(torch.equal(mine, first) for mine, first in zip(answer, expected, strict=True))


def test_cuda_graph(cuda):
    arrays = qkv(dtype=torch.bfloat16, device="cuda", width=64)
    other = qkv(dtype=torch.bfloat16, device="cuda", width=64, seed=9)
    valid = torch.ones(2, 20, dtype=torch.bool, device="cuda")
    call = lambda: rc.attention(*arrays, mask=rc.Mask(key_valid=valid), return_lse=True)  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = call()
    for part, new in zip(arrays, other, strict=True):
        part.copy_(new)
    valid[:, 7:] = False
    graph.replay()
    expected = rc.attention(*other, mask=rc.Mask(key_valid=valid), return_lse=True)
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_streams(cuda):
    arrays = qkv(dtype=torch.float16, device="cuda", queries=200, keys=900, width=128)
    expected = rc.attention(*arrays)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        made = [rc.attention(*arrays) for _ in range(20)]
    stream.synchronize()
    for part in made:
        assert torch.equal(part, expected)
