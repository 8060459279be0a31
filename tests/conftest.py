"""Shapes checked at run time, 64 bits where internals are called."""

import os
import warnings

from jaxtyping import install_import_hook

# Tests use the cores by running side by side. A program that waits, on a thread of the runtime's pool,
# for another thread of that pool can wait for ever where there are only two. Most of their time they
# compile programs to run once, so these are optimised less; `XLA_FLAGS=` in front of the command runs
# them as users do.
_QUICK = (
    "--xla_cpu_multi_thread_eigen=false",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_backend_optimization_level=1",
)
os.environ.setdefault("XLA_FLAGS", " ".join(_QUICK))

# ArviZ announces its next major version on import.
warnings.filterwarnings("ignore", category=FutureWarning, module="arviz")

with install_import_hook(("sojourn.messages", "sojourn.blocks"), "beartype.beartype"):
    import sojourn  # noqa: F401

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture
def x64():
    """Run a test that calls internals in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Drop compiled programs after each file: all of them together take gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240517)
