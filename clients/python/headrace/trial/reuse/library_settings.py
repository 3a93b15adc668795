"""Settings of libraries, if they are imported."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

from headrace.trial.reuse.setting import Same, Setting, attribute

_BACKENDS: Final = (
    *("cudnn.enabled", "cudnn.benchmark", "cudnn.benchmark_limit", "cudnn.deterministic", "cudnn.allow_tf32"),
    *("cuda.matmul.allow_tf32", "cuda.matmul.allow_fp16_reduced_precision_reduction"),
    *("cuda.matmul.allow_bf16_reduced_precision_reduction", "cuda.matmul.allow_fp16_accumulation"),
    *("mkldnn.enabled", "mkldnn.deterministic", "opt_einsum.enabled", "opt_einsum.strategy"),
    *("fp32_precision", "cudnn.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision"),
    *("cuda.matmul.fp32_precision", "mkldnn.fp32_precision", "mkldnn.conv.fp32_precision"),
    *("mkldnn.matmul.fp32_precision", "mkldnn.rnn.fp32_precision"),
)
_ATTENTION: Final = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")
_DEVICES: Final = ("cpu", "cuda")
_HOOKS: Final = (("torch.nn.modules.module", "_global_"), ("torch.optim.optimizer", "_global_"))


def settings_of(library: str) -> Iterator[Setting]:
    """The settings of one of `LIBRARIES`, which is imported."""
    yield from LIBRARIES[library](sys.modules[library])


def _numpy(numpy: Any) -> Iterator[Setting]:
    yield Setting("np.seterr", numpy.geterr, lambda saved: numpy.seterr(**saved))
    yield Setting("np.seterrcall", _same(numpy.geterrcall), lambda saved: numpy.seterrcall(saved.value))
    yield Setting("np.setbufsize", numpy.getbufsize, numpy.setbufsize)
    yield Setting(
        "np.set_printoptions", numpy.get_printoptions, lambda saved: numpy.set_printoptions(**saved)
    )


def _decimal(decimal: Any) -> Iterator[Setting]:
    def read() -> Same:
        context = decimal.getcontext()
        return Same(repr(context), context.copy())

    yield Setting("the context of decimal", read, lambda saved: decimal.setcontext(saved.value.copy()))
    for name in ("DefaultContext", "BasicContext", "ExtendedContext"):  # which later contexts copy
        yield _decimal_context(decimal, name)


def _decimal_context(decimal: Any, name: str) -> Setting:
    context = getattr(decimal, name)
    plain = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")

    def write(saved: Same) -> None:
        for part in plain:
            setattr(context, part, getattr(saved.value, part))
        context.flags, context.traps = dict(saved.value.flags), dict(saved.value.traps)

    return Setting(f"decimal.{name}", lambda: Same(repr(context), context.copy()), write)


def _tempfile(tempfile: Any) -> Iterator[Setting]:
    yield attribute(tempfile, "tempdir")  # Python itself notes there what it has chosen


def _socket(socket: Any) -> Iterator[Setting]:
    yield Setting("socket.setdefaulttimeout", socket.getdefaulttimeout, socket.setdefaulttimeout)


def _multiprocessing(multiprocessing: Any) -> Iterator[Setting]:
    yield Setting(
        "multiprocessing.set_start_method",
        lambda: multiprocessing.get_start_method(allow_none=True),
        lambda saved: multiprocessing.set_start_method(saved, force=True),
    )


def _pandas(pandas: Any) -> Iterator[Setting]:
    held = getattr(getattr(sys.modules.get("pandas._config"), "config", None), "_global_config", {})

    def write(saved: dict[str, Any]) -> None:
        for name, value in _options(held):
            if saved.get(name) != value:
                pandas.set_option(name, saved.get(name))

    yield Setting("pd.set_option", lambda: dict(_options(held)), write)


def _options(held: dict[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in held.items():
        if isinstance(value, dict):
            yield from _options(value, f"{start}{name}.")
        else:
            yield start + name, value


def _matplotlib(matplotlib: Any) -> Iterator[Setting]:
    # As dictionaries: the class warns of old names, and chooses a backend when one is read.
    yield Setting(
        "plt.rcParams",
        lambda: dict(dict.items(matplotlib.rcParams)),
        lambda saved: dict.update(matplotlib.rcParams, saved),
    )


def _pyplot(pyplot: Any) -> Iterator[Setting]:
    yield Setting("plt.figure", pyplot.get_fignums, lambda saved: _close_figures(pyplot, saved))


def _close_figures(pyplot: Any, saved: list[int]) -> None:
    for number in set(pyplot.get_fignums()) - set(saved):
        pyplot.close(number)


def _sklearn(sklearn: Any) -> Iterator[Setting]:
    yield Setting("sklearn.set_config", sklearn.get_config, lambda saved: sklearn.set_config(**saved))


def _asyncio(asyncio: Any) -> Iterator[Setting]:
    # Without a policy the next trial meets no event loop, and none that was closed.
    yield attribute(asyncio.events, "_event_loop_policy", "asyncio.set_event_loop_policy")


def _torch(torch: Any) -> Iterator[Setting]:
    yield Setting("torch.set_default_dtype", torch.get_default_dtype, torch.set_default_dtype)
    yield Setting("torch.set_default_device", lambda: _device(torch), torch.set_default_device)
    yield Setting("torch.set_num_threads", torch.get_num_threads, torch.set_num_threads)
    yield Setting(
        "torch.use_deterministic_algorithms",
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda saved: torch.use_deterministic_algorithms(saved[0], warn_only=saved[1]),
    )
    yield _of_path(torch, "utils.deterministic.fill_uninitialized_memory")
    yield Setting(
        "torch.set_float32_matmul_precision",
        _known(torch.get_float32_matmul_precision),
        torch.set_float32_matmul_precision,
    )
    for path in _BACKENDS:
        yield _of_path(torch, f"backends.{path}")
    for kind in _ATTENTION:
        enabled = getattr(torch.backends.cuda, f"{kind}_enabled", None)
        if enabled is not None:
            yield Setting(
                f"torch.backends.cuda.enable_{kind}", enabled, getattr(torch.backends.cuda, f"enable_{kind}")
            )
    yield Setting("torch.set_grad_enabled", torch.is_grad_enabled, torch.set_grad_enabled)
    yield _left("torch.inference_mode", torch.is_inference_mode_enabled)
    yield _left("a mode of torch.overrides", torch._C._len_torch_function_stack)
    yield _left("a mode of torch.utils._python_dispatch", torch._C._len_torch_dispatch_stack)
    yield _left("a profiler of torch", torch._C._autograd._profiler_enabled)
    yield Setting(
        "torch.autograd.set_detect_anomaly",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda saved: torch.autograd.set_detect_anomaly(*saved),
    )
    yield Setting("torch.autocast", lambda: _autocast(torch), lambda saved: _write_autocast(torch, saved))
    yield Setting(
        "torch.set_printoptions",
        lambda: dict(vars(torch._tensor_str.PRINT_OPTS)),
        lambda saved: vars(torch._tensor_str.PRINT_OPTS).update(saved),
    )
    yield Setting(
        "torch.multiprocessing.set_sharing_strategy",
        torch.multiprocessing.get_sharing_strategy,
        torch.multiprocessing.set_sharing_strategy,
    )
    yield Setting("a global hook of torch", _hooks, _write_hooks)
    yield Setting("torch.cuda.set_device", lambda: _cuda_device(torch), torch.cuda.set_device)
    yield Setting("torch.cuda.set_stream", lambda: _stream(torch), lambda _: _write_stream(torch))


LIBRARIES: Final[dict[str, Callable[[ModuleType], Iterator[Setting]]]] = {
    "numpy": _numpy,
    "decimal": _decimal,
    "tempfile": _tempfile,
    "socket": _socket,
    "multiprocessing": _multiprocessing,
    "pandas": _pandas,
    "matplotlib": _matplotlib,
    "matplotlib.pyplot": _pyplot,
    "sklearn": _sklearn,
    "asyncio": _asyncio,
    "torch": _torch,
}


def _same(read: Callable[[], Any]) -> Callable[[], Same]:
    def found() -> Same:
        value = read()
        return Same(id(value), value)

    return found


def _left(name: str, read: Callable[[], Any]) -> Setting:
    """A mode that only the object that has entered it can leave."""

    def write(_: Any) -> None:
        raise RuntimeError("use it in a `with` statement")

    return Setting(name, read, write)


def _of_path(torch: Any, path: str) -> Setting:
    """An attribute of PyTorch that it computes. A release may not have it, or not be able to read it."""
    *steps, last = path.split(".")
    owner: Any = torch
    for step in steps:
        owner = getattr(owner, step, None)

    return Setting(
        f"torch.{path}",
        _known(lambda: getattr(owner, last, None)),
        lambda saved: setattr(owner, last, saved),
    )


def _known(read: Callable[[], Any]) -> Callable[[], Any]:
    """PyTorch refuses to read an older setting of a precision if a newer one contradicts it."""

    def found() -> Any:
        with suppress(RuntimeError):
            return read()
        return "unknown"

    return found


def _device(torch: Any) -> Any:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return getattr(context, "device", None)


def _autocast(torch: Any) -> tuple[Any, ...]:
    torch.autocast_increment_nesting()
    devices = tuple((torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in _DEVICES)
    return torch.autocast_decrement_nesting(), torch.is_autocast_cache_enabled(), devices


def _write_autocast(torch: Any, saved: tuple[Any, ...]) -> None:
    nested, caches, devices = saved
    for _ in range(_autocast(torch)[0] - nested):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(caches)
    for device, (enabled, dtype) in zip(_DEVICES, devices, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def _hooks() -> dict[tuple[str, str], Any]:
    return {
        (name, variable): tuple(value.items()) if isinstance(value, dict) else value
        for name, start in _HOOKS
        if (module := sys.modules.get(name)) is not None
        for variable, value in list(vars(module).items())
        if variable.startswith(start) and (value is None or isinstance(value, dict | bool))
    }


def _write_hooks(saved: dict[tuple[str, str], Any]) -> None:
    for (name, variable), value in saved.items():
        module = sys.modules[name]
        if isinstance(value, tuple):
            held = getattr(module, variable)
            held.clear()
            held.update(value)
        else:
            setattr(module, variable, value)


def _cuda_device(torch: Any) -> int:
    return int(torch.cuda.current_device()) if torch.cuda.is_initialized() else 0


def _stream(torch: Any) -> bool:
    """Whether a stream other than the default one is set on the current device."""
    return bool(torch.cuda.is_initialized() and torch.cuda.current_stream() != torch.cuda.default_stream())


def _write_stream(torch: Any) -> None:
    torch.cuda.set_stream(torch.cuda.default_stream())
