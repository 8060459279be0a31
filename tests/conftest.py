"""Shapes checked at run time, 64 bits where internals are called."""

import os
import warnings

from jaxtyping import install_import_hook

# Tests use the cores by running side by side. A program that waits, on a thread of the runtime's pool,
# for another thread of that pool can wait for ever where there are only two.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"

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
