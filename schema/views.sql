-- For people: plural names, ids and times as one reads them. Safe to read while runs are live; nothing here writes
-- except through `event_in`.
CREATE VIEW sessions AS
  SELECT s.session_id, s.workspace, s.tenant_id, s.principal, s.agent_template_id, s.correlation_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.created_ms / 1000.0, 'unixepoch') AS created,
    s.run_count AS runs_ever, b.head_seq AS facts, lower(hex(b.head_hash)) AS head_hash, s.owner, s.fence, s.forked_from
  FROM session s LEFT JOIN branch b ON b.branch_pk = s.live_branch;

-- `state`: the status, or `superseded` once another run has taken the work over. (Whether the owner of a live run is
-- alive is a question for a kernel lock: `thence ls` answers it.)
CREATE VIEW runs AS
  SELECT s.session_id, i.run_id, r.status,
    CASE WHEN n.run_pk IS NOT NULL THEN 'superseded' ELSE r.status END AS state,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.created_ms / 1000.0, 'unixepoch') AS created,
    r.ended_ms - r.created_ms AS took_ms, r.rounds, r.tool_calls_count, r.prompt_tokens, r.completion_tokens,
    r.total_tokens, r.requests_without_usage, t.event_count, t.waiting_dropped AS outside_events_dropped,
    c.round AS checkpoint_round, p.run_id AS resumed_from, n.run_id AS superseded_by,
    r.error_code, r.error_message, r.prompt, r.result_text
  FROM run r
  JOIN run_identity i ON i.run_pk = r.run_pk
  JOIN session s ON s.session_pk = r.session_pk
  LEFT JOIN stream t ON t.stream_pk = r.run_pk
  LEFT JOIN checkpoint c ON c.run_pk = r.run_pk
  LEFT JOIN run_identity p ON p.run_pk = i.resumed_from
  LEFT JOIN run_identity n ON n.resumed_from = r.run_pk;

-- The live branch of each session, its parents' part included, in order.
CREATE VIEW facts AS
  SELECT s.session_id, f.seq, f.kind, f.key, f.cause, i.run_id,
    strftime('%Y-%m-%dT%H:%M:%fZ', f.ts_ms / 1000.0, 'unixepoch') AS at, lower(hex(f.hash)) AS hash, f.blobs, f.payload
  FROM session s
  JOIN (SELECT branch_pk, ancestor_pk AS source_pk, first_seq, last_seq FROM ancestry
        UNION ALL SELECT branch_pk, branch_pk, first_seq, 4294967295 FROM branch) v ON v.branch_pk = s.live_branch
  JOIN fact f ON f.id BETWEEN v.source_pk << 32 | v.first_seq AND v.source_pk << 32 | v.last_seq
  LEFT JOIN run_identity i ON i.run_pk = f.run_pk;

CREATE VIEW calls_in_flight AS
  SELECT s.session_id, i.run_id, c.call_key, c.tool, c.effect, c.state,
    strftime('%Y-%m-%dT%H:%M:%fZ', c.started_ms / 1000.0, 'unixepoch') AS started
  FROM inflight c JOIN session s ON s.session_pk = c.session_pk JOIN run_identity i ON i.run_pk = c.run_pk;

CREATE VIEW events AS
  SELECT s.session_id, i.run_id, e.sequence, e.type,
    strftime('%Y-%m-%dT%H:%M:%fZ', e.ts_ms / 1000.0, 'unixepoch') AS at, e.bytes, e.payload
  FROM stream t
  JOIN event e ON e.id BETWEEN t.stream_pk << 32 AND t.stream_pk << 32 | 4294967295
  JOIN session s ON s.session_pk = t.session_pk
  LEFT JOIN run_identity i ON i.run_pk = t.stream_pk;

CREATE VIEW traces AS
  SELECT s.session_id, i.run_id, t.number, t.kind, t.name,
    strftime('%Y-%m-%dT%H:%M:%fZ', t.ts_ms / 1000.0, 'unixepoch') AS at, t.payload
  FROM session s
  JOIN trace t ON t.id BETWEEN s.session_pk << 32 AND s.session_pk << 32 | 4294967295
  LEFT JOIN run_identity i ON i.run_pk = t.run_pk;

CREATE VIEW waits AS
  SELECT s.session_id, i.run_id, w.wait_id, w.kind, w.subject, w.digest, w.deadline_ms,
    CASE WHEN w.closed_ms IS NOT NULL THEN 'closed' WHEN a.wait_pk IS NOT NULL THEN 'answered' ELSE 'open' END AS state,
    a.value AS answer, a.by AS answered_by, w.payload
  FROM wait w JOIN session s ON s.session_pk = w.session_pk JOIN run_identity i ON i.run_pk = w.run_pk
  LEFT JOIN wait_answer a ON a.wait_pk = w.wait_pk;

CREATE VIEW tasks AS
  SELECT s.session_id, t.task_id, i.run_id, t.child_session_id, t.agent, t.description, t.status,
    strftime('%Y-%m-%dT%H:%M:%fZ', t.started_ms / 1000.0, 'unixepoch') AS started,
    t.finished_ms - t.started_ms AS took_ms, t.output
  FROM task t JOIN session s ON s.session_pk = t.session_pk LEFT JOIN run_identity i ON i.run_pk = t.run_pk;

CREATE VIEW event_in AS
  SELECT NULL AS run_id, NULL AS session_id, NULL AS type, NULL AS payload, NULL AS request_id, NULL AS ts_ms WHERE 0;
