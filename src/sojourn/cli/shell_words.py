"""Messages of the library in words of the command line."""

import re

# Arguments, and the options that stand for them.
_OPTIONS = {
    "control_variate": "--control-variate",
    "init": "--init",
    "length": "--length",
    "num_chains": "--chains",
    "num_draws": "--draws",
    "num_lags": "--lags",
    "num_samples": "--samples",
    "num_states": "--states",
    "num_warmup": "--warmup",
    "state_dim": "--state-dim",
    "step_size": "--step-size",
    "thin": "--thin",
}

# Arguments that are words of the language too; said of an argument before "must" and "=" alone.
_WORDS = ("init", "length", "thin")

# What messages call things, and what these are called in a shell.
_PHRASES = (
    (r"sojourn\.resume\('(.*?)'\)", r"sojourn resume \1"),
    (r"sojourn\.resume\b", "sojourn resume"),
    (r"fit\.plot_trace\(\)", "the traces of sojourn report"),
    (r"this (error|exception)'s `fit`", "the run"),
    (r"`out`", "--out"),
    (r"open_series\(data, standardize=True\)", "give --standardize"),
    (r"open_series\(data, (\w+=.*?)\)", r"\1"),
    (r", with data=", ", after the run's name"),
    (r"windows=Windows\((\d+), buffer=(\d+), batch=(\d+)\)", r"--length \1 --buffer \2 --batch \3"),
    (r"windows='auto'", "--length auto"),
    (r"\bWindows\.full\(\)", "--length full"),
    (r"control_variate='auto'", "--control-variate auto"),
    (r"control_variate=False", "--control-variate no"),
    (r"\bor a control variate\b", "or --control-variate yes"),
    (r"\b(the|larger) batch\b", r"\1 --batch"),
    (r"\blonger buffer\b", "longer --buffer"),
    (r"\bnum_samples or thin\b", "--samples or --thin"),
    (r"\bemission_dim=(?=\d)", ""),
    (r"\bcolumns=", "--column"),
    (r"\b(sequence|variable|missing)=(?=['\w])", r"--\1 "),
    (r"\b(sequence|variable|missing)=", r"--\1"),
)

# Names of files and columns stay as they are.
_BEFORE, _AFTER = r"(?<![\w/.'-])", r"(?![\w/']|\.\w)"


def in_shell(message: object) -> str:
    """Return a message in one line, with options instead of arguments and commands instead of calls."""
    text = " ".join(str(message).split())
    for words, command in _PHRASES:
        text = re.sub(words, command, text)
    for name, option in _OPTIONS.items():
        text = re.sub(rf"{_BEFORE}{name}=(?=\w)", f"{option} ", text)
        only = "(?= must)" if name in _WORDS else ""
        text = re.sub(f"{_BEFORE}{name}{_AFTER}{only}", option, text)
    return text
