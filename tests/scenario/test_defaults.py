"""Every default of a scenario, in one place: a change of one is a change of what people measure."""

from __future__ import annotations

from tailgauge.scenario.model import Scenario, parse
from tailgauge.scenario.simulated import EngineTable

DEFAULTS = {
    "name": "bare",
    "description": "",
    "seed": 1,
    "repeat_prompts": False,
    "clock": "kernel",
    "reader": "compiled",
    "keep_answers": None,
    "plugins": [],
    "target": {
        "url": "simulated", "protocol": "anthropic", "model": "tiny", "api_key_env": None, "ca_file": None,
        "connections": 1000, "preopened": 0, "headers": {}, "body": {}, "session_header": "x-session-id", "engine": None,
        "auth_header": None, "max_tokens_field": None,
        "sse": {
            "path": "/", "body": {"prompt": "{prompt}", "max_tokens": "{max_tokens}"},
            "content": {"event": None, "where": {}, "text": "", "encoding": "text"},
            "error": {"event": None, "where": {}, "status": None, "type": None, "message": None},
            "phase": {"event": None, "where": {}, "name": ""},
            "citation": {"event": None, "where": {}},
            "end": {"event": None, "where": {}, "data": "[DONE]"},
            "input_tokens": None, "output_tokens": None,
            "jobs": {
                "url": None, "state": "/status", "result_url": None,
                "states": {
                    "succeeded": "ok", "completed": "ok", "done": "ok", "failed": "server_error", "error": "server_error",
                    "expired": "timeout", "cancelled": "cancelled", "canceled": "cancelled",
                },
            },
        },
    },
    "second_target": None,
    "arrival": {
        "process": "poisson", "rate_per_s": None, "cv": 1.0,
        "on_off": {"on_s": 5.0, "off_s": 15.0, "off_share": 0.0},
        "shape": {"kind": "flat", "at": 0.5, "width": 0.1, "factor": 2.0, "points": []},
        "trace": {
            "file": None, "format": "auto", "time_unit": None, "speed_up": 1.0, "keep_share": 1.0, "sizes": True,
            "blocks": True, "block_tokens": None,
        },
        "closed": {"users": 10, "think_s": 1.0, "think_sigma": 0.0, "requests": None}, "max_concurrency": None,
    },
    "stages": {"duration_s": 30.0, "warmup_s": None, "cooldown_s": 0.0},
    "traffic": {
        "main": {
            "pattern": "streaming", "weight": 1.0, "prompt_tokens": 200, "prompt_sigma": 0.0, "output_tokens": 50,
            "output_sigma": 0.0, "tags": {}, "model": None, "target": "main", "stream": True, "thinking": "off",
            "thinking_tokens": 1024, "tools": 0, "cache": None, "headers": {}, "body": {}, "output": None,
        "ends": "limit",
            "prompts": {"source": None, "file": None, "columns": {}, "order": "file", "at_end": "repeat"},
            "session": {"turns_mean": 1.0, "think_s": 5.0, "think_sigma": 0.5, "grow": True},
            "retry": {
                "policy": "none", "max_retries": 3, "base_s": 0.5, "cap_s": 8.0, "budget_share": 0.1,
                "budget_burst": 10.0, "deadline_s": 60.0, "naive_wait_s": 0.1,
            },
            "hedge": {
                "policy": "off", "delay_ms": 1000.0, "quantile": 0.95, "window_s": 30.0, "warm_up": 20,
                "probability": 0.5, "budget_share": 0.1, "budget_burst": 10.0, "throttle_tokens": 10.0,
                "throttle_ratio": 0.1, "target": "main",
            },
            "fan_out": {
                "legs": 5, "kinds": [], "join": "all", "k": 1, "deadline_s": 10.0, "order": "parallel",
                "partial": "fail", "at_once": None, "at_once_per_worker": None,
            },
            "structured": {"mode": "one_call", "field_tokens": 30},
            "progressive": {"fast_model": None, "fast_tokens": 20, "target": "main"},
            "fallback": {"after_s": None, "model": None, "target": "main"},
            "cancel": {"share": 0.0, "after_chunks": None, "after_s": None, "resubmit": False},
            "reader": {"bytes_per_s": None},
            "batch": {
                "requests": 10, "poll_s": 5.0, "backoff": 1.0, "poll_max_s": 60.0, "deadline_s": 86400.0,
            },
            "resume": {
                "share": 1.0, "after_chunks": None, "after_s": None, "cuts": 1, "wait_s": 0.0, "reconnections": 10,
            },
            "job": {"poll_s": 1.0, "backoff": 1.0, "poll_max_s": 60.0, "deadline_s": 600.0},
        }
    },
    "limits": {
        "in_flight_per_worker": 1000, "attempt_deadline_s": 120.0, "connect_timeout_s": 10.0, "drain_s": 60.0, "ready_s": 0.0,
    },
    "guard": {"max_requests": None, "max_tokens": None, "max_cost": None, "prices": None},
    "stop": {"min_completed": 0.5, "connect_errors": 20, "rejections": 20, "max_ttft_ms": None, "ttft_s": 10.0},
    "simulated": {
        "ttft_ms": 200.0, "ttft_sigma": 0.0, "ttft_exponential": False, "chunk_gap_ms": 10.0, "chunk_gap_sigma": 0.0, "tokens_per_chunk": 1,
        "profile": "fixed", "ping_every_s": 0.0, "faults": {},
        "engine": dict.fromkeys(EngineTable.model_fields),
        "limits": {
            "rpm": None, "itpm": None, "otpm": None, "burst": None, "itpm_burst": None, "otpm_burst": None,
            "otpm_mode": "actual", "reads_count": False, "ramp_growth": 0.0, "ramp_window_s": 60.0, "ramp_floor": 100,
            "spend": None, "overload": False, "in_band": False, "headers": "provider", "retry_after": "seconds",
            "should_retry": None,
        },
        "cache": {
            "mode": "off", "minimum_tokens": None, "block_tokens": 16, "ttl_5m_s": 300.0, "ttl_1h_s": 3600.0,
            "ttl_30m_s": 1800.0, "ttl_12h_s": 43_200.0, "automatic_ttl_s": 1e9, "sliding": True, "lookback": 20, "visibility_delay_s": 0.0, "per_replica": False,
            "route_miss_prob": 0.0, "capacity_tokens": 50_000_000,
        },
        "stragglers": {
            "size_sigma": 0.0, "slow_share": 0.0, "slow_factor": 10.0, "pareto_alpha": 0.0, "brownout_factor": 1.0,
            "brownout_on_s": 5.0, "brownout_off_s": 55.0,
        },
        "gateway": {"delay_ms": 0.0, "delay_sigma": 0.0, "holds": False},
        "billing": {"bill_cancelled": "generated", "read": 0.1, "write_5m": 1.25, "write_1h": 2.0, "output": 5.0},
        "content": {
            "thinking_share": 0.0, "thinking_display": "shown", "undeclared_share": 0.0, "undeclared_calls": 1.0, "tool_share": 0.0, "tool_pair_tokens": 16,
            "text_blocks": 1,
        },
        "natural": {"share": 0.0, "tokens": 50, "sigma": 0.0},
        "served": {
            "model": "", "service_tier": "", "speed": "", "inference_geo": "", "fallback": 0.0,
            "fallback_model": "fallback-model",
        },
        "search": {"share": 0.0, "seconds": 1.0, "query_tokens": 4, "result_tokens": 0},
        "resumption": {"ids": False, "ignored": 0.0, "repeated": 0.0, "skipped": 0.0, "events": 3},
        "jobs": {
            "turnaround_s": 2.0, "turnaround_sigma": 0.3, "retry_after_s": None, "lost": 0.0, "gone": 0.0,
            "expired": 0.0, "failed": 0.0, "kept": 10_000,
        },
    },
    "report": {"first_token": "any"},
    "slo": {},
    "crossover": None,
    "experiment": None,
}  # fmt: skip


def test_every_default_is_visible():
    assert parse({"name": "bare"}, "my.toml").model_dump(mode="json") == DEFAULTS


def test_the_models_name_every_table_of_the_scenario():
    assert list(Scenario.model_fields) == list(DEFAULTS)
