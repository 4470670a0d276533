"""What clients may send: request bodies are checked here, before anything reaches the scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from .adapters import MAX_NAME
from .config import EngineConfig
from .request import Request, SamplingParams
from .tokenizer import VOCABULARY, encode

MAX_RID = 128
MAX_PRIORITY = 100
_RESERVED_OWNERS = ("session:", "tree:", "prefetch:")
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "an integer", float: "a number"}
_SAMPLING = ("max_new_tokens", "temperature", "seed", "ignore_eos")


class BadRequest(Exception):
    """What is wrong with a request, for the client."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request and how to answer it."""

    request: Request
    stream: bool


def parse_generate(body: dict[str, Any], config: EngineConfig) -> Job:
    """The job of a `/generate` body; raises BadRequest."""
    _only(body, ("text", "input_ids", "sampling_params", "stream", "rid", "adapter", "session_id", "priority"), "body")
    if ("text" in body) == ("input_ids" in body):
        raise BadRequest("give either 'text' or 'input_ids'")
    prompt = _text(body["text"], "text") if "text" in body else _token_ids(body["input_ids"], "input_ids")
    params = body.get("sampling_params", {})
    if not isinstance(params, dict):
        raise BadRequest(f"'sampling_params' must be an object, not {_kind(params)}")
    _only(params, _SAMPLING, "'sampling_params'")
    return _job(prompt, params, body, config)


def parse_completion(body: dict[str, Any], config: EngineConfig) -> Job:
    """The job of a `/v1/completions` body; raises BadRequest."""
    _only(body, ("model", "prompt", "max_tokens", "temperature", "seed", "ignore_eos", "stream", "rid", "user"), "body")
    if "prompt" not in body:
        raise BadRequest("'prompt' is missing")
    prompt = body["prompt"]
    ids = _token_ids(prompt, "prompt") if isinstance(prompt, list) else _text(prompt, "prompt")
    params = {name: body[name] for name in _SAMPLING if name in body}
    if "max_tokens" in body:
        params["max_new_tokens"] = _integer(body["max_tokens"], "max_tokens", 1, config.context_len)
    return _job(ids, params, body, config)


def _job(prompt: list[int], params: dict[str, Any], body: dict[str, Any], config: EngineConfig) -> Job:
    default = SamplingParams()
    sampling = SamplingParams(
        max_new_tokens=_integer(
            params.get("max_new_tokens", default.max_new_tokens), "max_new_tokens", 1, config.context_len
        ),
        temperature=_temperature(params.get("temperature", default.temperature)),
        seed=_integer(params.get("seed", default.seed), "seed", 0, 2**63 - 1),
        ignore_eos=_boolean(params.get("ignore_eos", default.ignore_eos), "ignore_eos"),
    )
    if len(prompt) >= config.context_len:
        raise BadRequest(f"the input has {len(prompt)} tokens; the context has {config.context_len}")
    if len(prompt) + sampling.max_new_tokens > config.context_len:
        raise BadRequest(
            f"the input has {len(prompt)} tokens and 'max_new_tokens' is {sampling.max_new_tokens}; "
            f"together they exceed the context of {config.context_len}"
        )
    stream = _boolean(body.get("stream", False), "stream")
    adapter, session = (_name(body.get(key), key) for key in ("adapter", "session_id"))
    priority = _integer(body.get("priority", 0), "priority", -MAX_PRIORITY, MAX_PRIORITY)
    return Job(Request(_rid(body.get("rid")), prompt, sampling, adapter, session, priority), stream)


def _rid(value: Any) -> str:
    if value is None:
        return uuid4().hex
    if not isinstance(value, str) or not 0 < len(value) <= MAX_RID:
        raise BadRequest(f"'rid' must be a string of 1 to {MAX_RID} characters")
    if value.startswith(_RESERVED_OWNERS):
        raise BadRequest(f"'rid' must not begin with {', '.join(_RESERVED_OWNERS)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest("'rid' is not valid Unicode") from None
    return value


def _name(value: Any, field: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not value.isascii():
        raise BadRequest(f"{field!r} must be a string of 1 to {MAX_NAME} ASCII characters")
    return value


def _text(value: Any, name: str) -> list[int]:
    if not isinstance(value, str):
        raise BadRequest(f"{name!r} must be a string, not {_kind(value)}")
    return _nonempty(encode(value), name)


def _token_ids(value: Any, name: str) -> list[int]:
    if not isinstance(value, list):
        raise BadRequest(f"{name!r} must be a list of token ids, not {_kind(value)}")
    return _nonempty([_integer(item, f"{name}[{index}]", 0, VOCABULARY - 1) for index, item in enumerate(value)], name)


def _nonempty(tokens: list[int], name: str) -> list[int]:
    if not tokens:
        raise BadRequest(f"{name!r} is empty")
    return tokens


def _integer(value: Any, name: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(f"{name!r} must be an integer, not {_kind(value)}")
    if not least <= value <= most:
        raise BadRequest(f"{name!r} must be in {least}..{most}")
    return value


def _temperature(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise BadRequest(f"'temperature' must be a number, not {_kind(value)}")
    if not (0 <= value <= 100) or math.isnan(value):
        raise BadRequest("'temperature' must be in 0..100")
    return float(value)


def _boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"{name!r} must be true or false, not {_kind(value)}")
    return value


def _only(given: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in given:
        if name not in known:
            raise BadRequest(f"{where} has an unknown field {name!r}; known are {', '.join(known)}")


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "null")
