"""What each named statement that writes changes in the file, to the last column, and that it changes nothing else (§8).

The statement is about the session in the middle of three that look alike (`test_mutants_neighbours`).
"""

from __future__ import annotations

from typing import Any

import pytest

from .test_mutants_neighbours import B, Changes, neighbours, perform

BRANCH, RUN, FENCE = 8, 5, 3
CAPS = {
    "max_runs_retained": 11, "max_events_per_run": 12, "max_event_bytes_per_run": 13, "max_trace_events": 14,
    "max_terminal_subagent_tasks": 15,
}  # fmt: skip
TAGS = {"tenant_id": "nt", "principal": "np", "agent_template_id": "na", "correlation_id": "nc"}
USED = {
    "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "cache_read_tokens": 4, "cache_write_tokens": 5,
}  # fmt: skip


def packed(parent: int, number: int) -> int:
    return parent << 32 | number


# name -> (what is done to the file before, parameters, what changes)
CASES: dict[str, tuple[str, dict[str, Any], Changes]] = {
    "session_add": (
        "",
        {"session_id": "d", "workspace": "/d", "created_ms": 9, "forked_from": "b", **TAGS, **CAPS},
        {("session", 4): {
            "session_pk": 4, "session_id": "d", "workspace": "/d", "created_ms": 9, "forked_from": "b", "fence": 0,
            "run_count": 0, "terminal_tasks": 0, **TAGS, **CAPS,
        }},
    ),
    "session_go_live": (
        "UPDATE session SET live_branch = 1", {"session_id": "b"}, {("session", B): {"live_branch": BRANCH}},
    ),
    "session_go_live_again": (
        "UPDATE session SET live_branch = 1", {"session_pk": B}, {("session", B): {"live_branch": BRANCH}},
    ),
    "session_option_add": (
        "DELETE FROM session_option",
        {"session_id": "b", "options": '{"o":1}', "requires": '["r"]', "durable_memory": '{"m":1}'},
        {("session_option", B): {
            "session_pk": B, "options": '{"o":1}', "requires": '["r"]', "durable_memory": '{"m":1}',
        }},
    ),
    "session_option_update": (
        "", {"session_pk": B, "options": '{"o":1}', "requires": '["r"]'},
        {("session_option", B): {"options": '{"o":1}', "requires": '["r"]'}},
    ),
    "session_relabel": (
        "", {"session_pk": B, "workspace": "/n", **TAGS}, {("session", B): {"workspace": "/n", **TAGS}},
    ),
    "session_relabel, with nothing": (
        "", {"session_pk": B, "workspace": None, **dict.fromkeys(TAGS)}, {},
    ),
    "session_caps": ("", {"session_pk": B, **CAPS}, {("session", B): CAPS}),
    "branch_first": (
        "", {"session_id": "b"},
        {("branch", 10): {
            "branch_pk": 10, "session_pk": B, "first_seq": 1, "head_seq": 0, "head_hash": bytes(32), "pruned_to": 0,
        }},
    ),
    "file_add": (
        "", {"lineage_id": "l", "created_ms": 9, "allow_network_fs": 1},
        {("file", 1): {"file_pk": 1, "lineage_id": "l", "created_ms": 9, "generation": 1, "allow_network_fs": 1}},
    ),
    "blob_add": (
        "", {"sha256": "new", "size": 3, "bytes": b"new"},
        {("blob", 22): {"sha256": "new", "size": 3, "bytes": b"new"}},
    ),
    "blob_ref_add": (
        "", {"session_pk": B, "sha256": "sha-1-1-2"},
        {("blob_ref", B, "sha-1-1-2"): {"session_pk": B, "sha256": "sha-1-1-2"}},
    ),
    "stream_add": (
        "DELETE FROM stream WHERE stream_pk = 5", {"run_id": "run-2-1"},
        {("stream", RUN): {
            "stream_pk": RUN, "session_pk": B, "event_count": 0, "event_bytes": 0, "last_ms": 0, "waiting_count": 0,
            "waiting_bytes": 0, "waiting_dropped": 0,
        }},
    ),
    "stream_add_channel": (
        "DELETE FROM stream WHERE stream_pk = -2", {"session_id": "b"},
        {("stream", -B): {
            "stream_pk": -B, "session_pk": B, "event_count": 0, "event_bytes": 0, "last_ms": 0, "waiting_count": 0,
            "waiting_bytes": 0, "waiting_dropped": 0,
        }},
    ),
    "delta_add": (
        "", {"stream_pk": RUN, "number": 4, "fence": FENCE, "step": "s", "type": "ty", "payload": "{}"},
        {("delta", packed(RUN, 4)): {
            "id": packed(RUN, 4), "stream_pk": RUN, "number": 4, "fence": FENCE, "step": "s", "type": "ty",
            "payload": "{}",
        }},
    ),
    "delta_clear": (
        "", {"stream_pk": RUN, "step": "step-0"}, {("delta", packed(RUN, 0)): None, ("delta", packed(RUN, 1)): None},
    ),
    "delta_clear, the last": (
        "", {"stream_pk": RUN, "step": "step-1"}, {("delta", packed(RUN, 2)): None, ("delta", packed(RUN, 3)): None},
    ),
    "delta_clear_all": ("", {"stream_pk": RUN}, {("delta", packed(RUN, number)): None for number in range(4)}),
    "inbox_remove": ("", {"inbox_pk": 4, "fence": FENCE}, {("inbox", 4): None}),
    "inbox_remove, displaced": ("", {"inbox_pk": 4, "fence": FENCE - 1}, {}),
    "inflight_start": (
        "",
        {
            "session_pk": B, "position": 3, "run_pk": RUN, "fence": FENCE, "call_key": "k", "tool": "to",
            "effect": "read", "started_ms": 9,
        },
        {("inflight", packed(B, 3)): {
            "id": packed(B, 3), "session_pk": B, "position": 3, "run_pk": RUN, "fence": FENCE, "call_key": "k",
            "tool": "to", "effect": "read", "state": "started", "started_ms": 9, "starts": 1,
        }},
    ),
    "inflight_unstart": ("", {"session_pk": B, "position": 2}, {("inflight", packed(B, 2)): None}),
    "inflight_unstart, at the border of the next session": (
        f"UPDATE inflight SET state = 'started', result = NULL, fence = {FENCE} WHERE session_pk = {B}",
        {"session_pk": B, "position": 0}, {("inflight", packed(B, 0)): None},
    ),
    "inflight_unstart, it has landed": (
        f"UPDATE inflight SET state = 'landed', result = '1', fence = {FENCE} WHERE position = 2 AND session_pk = {B}",
        {"session_pk": B, "position": 2}, {},
    ),
    "inflight_restart": (
        "UPDATE session SET fence = 9", {"session_pk": B, "position": 2, "fence": 9},
        {("inflight", packed(B, 2)): {"starts": 3, "fence": 9}},
    ),
    "inflight_restart, at the border of the next session": (
        "", {"session_pk": B, "position": 0, "fence": FENCE}, {("inflight", packed(B, 0)): {"starts": 2}},
    ),
    "inflight_refuse": (
        "UPDATE run SET updated_ms = 70 + run_pk",
        {
            "session_pk": B, "position": 3, "run_id": "run-2-1", "fence": FENCE, "call_key": "k", "tool": "to",
            "result": "[1]",
        },
        {("inflight", packed(B, 3)): {
            "id": packed(B, 3), "session_pk": B, "position": 3, "run_pk": RUN, "fence": FENCE, "call_key": "k",
            "tool": "to", "state": "landed", "started_ms": 75, "landed_ms": 75, "result": "[1]", "starts": 1,
        }},
    ),
    "inflight_land": (
        "",
        {"session_pk": B, "call_key": "call-2", "fence": FENCE, "landed_ms": 9, "result": "[1]", "blobs": '["x"]'},
        {("inflight", packed(B, 2)): {"state": "landed", "landed_ms": 9, "result": "[1]", "blobs": '["x"]'}},
    ),
    "inflight_land, under a new claim": (
        "UPDATE session SET fence = 9",
        {"session_pk": B, "call_key": "call-2", "fence": 9, "landed_ms": 9, "result": "[1]", "blobs": None},
        {("inflight", packed(B, 2)): {"state": "landed", "fence": 9, "landed_ms": 9, "result": "[1]"}},
    ),
    "inflight_land, at the border of the next session": (
        "",
        {"session_pk": B, "call_key": "call-0", "fence": FENCE, "landed_ms": 9, "result": "[1]", "blobs": None},
        {("inflight", packed(B, 0)): {"landed_ms": 9, "result": "[1]", "blobs": None}},
    ),
    "inflight_clear": ("", {"session_pk": B}, {("inflight", packed(B, n)): None for n in range(3)}),
    "inflight_adopt": (
        "UPDATE session SET fence = 9", {"session_pk": B, "run_id": "run-2-0", "fence": 9},
        {("inflight", packed(B, n)): {"run_pk": 2, "fence": 9} for n in range(3)},
    ),
    "owner_add": (
        "", {"owner": "me", "pid": 7, "program": "py", "since_ms": 9},
        {("owner", 4): {"owner": "me", "pid": 7, "program": "py", "since_ms": 9}},
    ),
    "owner_remove": ("", {"owner": "o2"}, {("owner", 2): None}),
    "run_identity_add": (
        "",
        {"session_pk": B, "run_id": "new", "first_seq": 6, "input_sha256": "ab", "resumed_from": RUN},
        {("run_identity", 7): {
            "run_pk": 7, "run_id": "new", "session_pk": B, "branch_pk": BRANCH, "first_seq": 6, "input_sha256": "ab",
            "resumed_from": RUN,
        }},
    ),
    "run_forget_checkpoint": ("", {"session_pk": B}, {("checkpoint", RUN): None}),
    "run_set_status": (
        "",
        {"run_pk": RUN, "fence": FENCE, "status": "verifying", "now_ms": 90_000},
        {("run", RUN): {"status": "verifying", "updated_ms": 90_000}},
    ),
    "run_set_status, the clock went back, under a new claim": (
        "UPDATE session SET fence = 9",
        {"run_pk": RUN, "fence": 9, "status": "verifying", "now_ms": 1},
        {("run", RUN): {"status": "verifying", "fence": 9}},
    ),
    "run_end": (
        "",
        {
            "run_pk": RUN, "fence": FENCE, "status": "failed", "now_ms": 90_000, "rounds": 6, "tool_calls_count": 7,
            "requests_without_usage": 8, "resumable": 1, "error_code": "C", "error_message": "m", "result_text": "r",
            **USED,
        },
        {
            ("run", RUN): {
                "status": "failed", "updated_ms": 90_000, "ended_ms": 90_000, "rounds": 6, "tool_calls_count": 7,
                "requests_without_usage": 8, "resumable": 1, "error_code": "C", "error_message": "m",
                "result_text": "r", **USED,
            },
            **{("delta", packed(RUN, n)): None for n in range(4)},
        },
    ),
    "run_count_unknown": (
        "UPDATE run SET requests_without_usage = 3", {"run_pk": RUN, "fence": FENCE, "at_least": 5, "more": 2},
        {("run", RUN): {"requests_without_usage": 7}},
    ),
    "run_count_unknown, fewer than known": (
        "UPDATE run SET requests_without_usage = 3", {"run_pk": RUN, "fence": FENCE, "at_least": 2, "more": 0}, {},
    ),
    "run_count_unknown, under a new claim": (
        "UPDATE session SET fence = 9", {"run_pk": RUN, "fence": 9, "at_least": 0, "more": 0},
        {("run", RUN): {"fence": 9}},
    ),
    "trace_append": (
        "", {"session_pk": B, "run_pk": RUN, "fence": FENCE, "ts_ms": 9, "kind": "k", "name": "n", "payload": "{}"},
        {
            ("trace", packed(B, 2)): {
                "id": packed(B, 2), "session_pk": B, "number": 2, "run_pk": RUN, "fence": FENCE, "ts_ms": 9,
                "kind": "k", "name": "n", "payload": "{}",
            },
        },
    ),
    "trace_append, the first": (
        "DELETE FROM trace WHERE session_pk = 2",
        {"session_pk": B, "run_pk": RUN, "fence": FENCE, "ts_ms": 9, "kind": "k", "name": "n", "payload": "{}"},
        {
            ("trace", packed(B, 0)): {
                "id": packed(B, 0), "session_pk": B, "number": 0, "run_pk": RUN, "fence": FENCE, "ts_ms": 9,
                "kind": "k", "name": "n", "payload": "{}",
            },
        },
    ),
    "inbox_add": (
        "",
        {"stream_pk": RUN, "kind": "event", "request_id": "q", "ts_ms": 9, "type": "ty", "payload": '{"é":1}'},
        {
            ("inbox", 7): {
                "inbox_pk": 7, "session_pk": B, "stream_pk": RUN, "kind": "event", "request_id": "q", "waiting_no": 1,
                "off": 8, "bytes": 8, "ts_ms": 9, "type": "ty", "payload": '{"é":1}',
            },
            ("request", B, "q"): {"session_pk": B, "request_id": "q", "stream_pk": RUN, "taken_no": 1},
            ("stream", RUN): {"waiting_count": 2, "waiting_bytes": 16},
        },
    ),
    "checkpoint_put": (
        "",
        {
            "run_pk": RUN, "session_pk": B, "branch_pk": 2, "seq": 9, "round": 8, "fence": FENCE, "ts_ms": 7,
            "schema_version": 1, "counters": '{"c":1}', "usage": '{"u":1}', "state": "s", "proof": b"p",
        },
        {("checkpoint", RUN): {
            "branch_pk": 2, "seq": 9, "round": 8, "ts_ms": 7, "counters": '{"c":1}', "usage": '{"u":1}',
            "state": "s", "proof": b"p",
        }},
    ),
    "checkpoint_put, under a new claim": (
        "UPDATE session SET fence = 9",
        {
            "run_pk": RUN, "session_pk": B, "branch_pk": BRANCH, "seq": 42, "round": 2, "fence": 9, "ts_ms": 7,
            "schema_version": 1, "counters": "{}", "usage": "{}", "state": None, "proof": None,
        },
        {("checkpoint", RUN): {"fence": 9, "ts_ms": 7, "state": None, "proof": None}},
    ),
    "checkpoint_put, the first of a run": (
        "",
        {
            "run_pk": 2, "session_pk": B, "branch_pk": 2, "seq": 9, "round": 8, "fence": FENCE, "ts_ms": 7,
            "schema_version": 1, "counters": '{"c":1}', "usage": '{"u":1}', "state": "s", "proof": b"p",
        },
        {("checkpoint", 2): {
            "run_pk": 2, "session_pk": B, "branch_pk": 2, "seq": 9, "round": 8, "fence": FENCE, "ts_ms": 7,
            "schema_version": 1, "counters": '{"c":1}', "usage": '{"u":1}',
            "state": "s", "proof": b"p",
        }},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_changes_this_and_nothing_else(case: str):
    before, params, changes = CASES[case]
    f = neighbours()
    if before:
        f.sql(before)
    assert perform(f, case.partition(",")[0], **params) == ([], changes)
