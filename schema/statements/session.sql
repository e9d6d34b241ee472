-- name: session_add
-- A new session without a branch yet; refused when the id is taken.
INSERT INTO session(session_id, workspace, tenant_id, principal, agent_template_id, correlation_id, created_ms,
  forked_from, max_runs_retained, max_events_per_run, max_event_bytes_per_run, max_trace_events,
  max_terminal_subagent_tasks)
VALUES(:session_id, :workspace, :tenant_id, :principal, :agent_template_id, :correlation_id, :created_ms,
  :forked_from, :max_runs_retained, :max_events_per_run, :max_event_bytes_per_run, :max_trace_events,
  :max_terminal_subagent_tasks);

-- name: session_go_live
-- The session's log goes on in its newest branch.
UPDATE session SET live_branch = (SELECT max(branch_pk) FROM branch WHERE branch.session_pk = session.session_pk)
WHERE session_id = :session_id;

-- name: session_go_live_again
-- The same, for a session whose number is known.
UPDATE session SET live_branch = (SELECT max(branch_pk) FROM branch WHERE branch.session_pk = :session_pk)
WHERE session_pk = :session_pk;

-- name: session_option_add
-- The options that shape its runs, as the caller set them.
INSERT INTO session_option(session_pk, options, requires, durable_memory)
SELECT session_pk, :options, :requires, :durable_memory FROM session WHERE session_id = :session_id;

-- name: session_option_update
-- Options given anew when the session was opened again.
UPDATE session_option SET options = :options, requires = :requires WHERE session_pk = :session_pk;

-- name: session_relabel
-- Tags and workspace given anew on resume; they are durable at once. What is not given stays as it is now.
UPDATE session SET tenant_id = coalesce(:tenant_id, tenant_id), principal = coalesce(:principal, principal),
  agent_template_id = coalesce(:agent_template_id, agent_template_id),
  correlation_id = coalesce(:correlation_id, correlation_id), workspace = coalesce(:workspace, workspace)
WHERE session_pk = :session_pk;

-- name: session_caps
-- Retention caps given anew; they hold from the next insert on.
UPDATE session SET max_runs_retained = :max_runs_retained, max_events_per_run = :max_events_per_run,
  max_event_bytes_per_run = :max_event_bytes_per_run, max_trace_events = :max_trace_events,
  max_terminal_subagent_tasks = :max_terminal_subagent_tasks
WHERE session_pk = :session_pk;

-- name: session_claim
-- Who may write from now on. `dead_owner` is one whose kernel lock was found free; the fence makes its writes void, and
-- those of an owner that was displaced by `force`. The head says where the log must end.
UPDATE session SET owner = :owner, fence = fence + 1
WHERE session_pk = :session_pk AND (owner IS NULL OR owner = :owner OR owner = :dead_owner OR :force)
RETURNING fence, live_branch, (SELECT head_seq FROM branch WHERE branch_pk = live_branch),
  (SELECT head_hash FROM branch WHERE branch_pk = live_branch);

-- name: session_release
-- The operation is over; a claim of somebody else stays.
UPDATE session SET owner = NULL WHERE session_pk = :session_pk AND owner = :owner AND fence = :fence;

-- name: session_delete
-- The triggers take everything that belongs to it.
DELETE FROM session WHERE session_pk = :session_pk;

-- name: session_get
-- One session with its options.
SELECT s.session_pk, s.session_id, s.workspace, s.tenant_id, s.principal, s.agent_template_id, s.correlation_id,
  s.created_ms, s.live_branch, s.owner, s.fence, s.forked_from, s.max_runs_retained, s.max_events_per_run,
  s.max_event_bytes_per_run, s.max_trace_events, s.max_terminal_subagent_tasks, s.run_count, o.options, o.requires,
  o.durable_memory
FROM session s LEFT JOIN session_option o ON o.session_pk = s.session_pk WHERE s.session_id = :session_id;

-- name: session_list
-- Sessions in the order they were made, filtered by tags: for each, `any_` 1 lets every value pass, else it must be equal.
SELECT s.session_pk, s.session_id, s.workspace, s.tenant_id, s.principal, s.agent_template_id, s.correlation_id,
  s.created_ms, s.live_branch, s.owner, s.fence, s.forked_from, s.max_runs_retained, s.max_events_per_run,
  s.max_event_bytes_per_run, s.max_trace_events, s.max_terminal_subagent_tasks, s.run_count, o.options, o.requires,
  o.durable_memory
FROM session s LEFT JOIN session_option o ON o.session_pk = s.session_pk
WHERE (:any_tenant_id OR s.tenant_id IS :tenant_id) AND (:any_principal OR s.principal IS :principal)
  AND (:any_agent_template_id OR s.agent_template_id IS :agent_template_id)
  AND (:any_correlation_id OR s.correlation_id IS :correlation_id)
  AND s.session_pk > :after_pk
ORDER BY s.session_pk LIMIT :limit;

-- name: session_list_by_tenant_id
-- The same for one tenant_id, by its index.
SELECT s.session_pk, s.session_id, s.workspace, s.tenant_id, s.principal, s.agent_template_id, s.correlation_id,
  s.created_ms, s.live_branch, s.owner, s.fence, s.forked_from, s.max_runs_retained, s.max_events_per_run,
  s.max_event_bytes_per_run, s.max_trace_events, s.max_terminal_subagent_tasks, s.run_count, o.options, o.requires,
  o.durable_memory
FROM session s LEFT JOIN session_option o ON o.session_pk = s.session_pk
WHERE s.tenant_id = :tenant_id AND (:any_principal OR s.principal IS :principal)
  AND (:any_agent_template_id OR s.agent_template_id IS :agent_template_id)
  AND (:any_correlation_id OR s.correlation_id IS :correlation_id)
  AND s.session_pk > :after_pk
ORDER BY s.session_pk LIMIT :limit;

-- name: session_list_by_principal
-- The same for one principal, by its index.
SELECT s.session_pk, s.session_id, s.workspace, s.tenant_id, s.principal, s.agent_template_id, s.correlation_id,
  s.created_ms, s.live_branch, s.owner, s.fence, s.forked_from, s.max_runs_retained, s.max_events_per_run,
  s.max_event_bytes_per_run, s.max_trace_events, s.max_terminal_subagent_tasks, s.run_count, o.options, o.requires,
  o.durable_memory
FROM session s LEFT JOIN session_option o ON o.session_pk = s.session_pk
WHERE s.principal = :principal AND (:any_tenant_id OR s.tenant_id IS :tenant_id)
  AND (:any_agent_template_id OR s.agent_template_id IS :agent_template_id)
  AND (:any_correlation_id OR s.correlation_id IS :correlation_id)
  AND s.session_pk > :after_pk
ORDER BY s.session_pk LIMIT :limit;

-- name: session_list_by_agent_template_id
-- The same for one agent_template_id, by its index.
SELECT s.session_pk, s.session_id, s.workspace, s.tenant_id, s.principal, s.agent_template_id, s.correlation_id,
  s.created_ms, s.live_branch, s.owner, s.fence, s.forked_from, s.max_runs_retained, s.max_events_per_run,
  s.max_event_bytes_per_run, s.max_trace_events, s.max_terminal_subagent_tasks, s.run_count, o.options, o.requires,
  o.durable_memory
FROM session s LEFT JOIN session_option o ON o.session_pk = s.session_pk
WHERE s.agent_template_id = :agent_template_id AND (:any_tenant_id OR s.tenant_id IS :tenant_id)
  AND (:any_principal OR s.principal IS :principal)
  AND (:any_correlation_id OR s.correlation_id IS :correlation_id)
  AND s.session_pk > :after_pk
ORDER BY s.session_pk LIMIT :limit;

-- name: session_list_by_correlation_id
-- The same for one correlation_id, by its index.
SELECT s.session_pk, s.session_id, s.workspace, s.tenant_id, s.principal, s.agent_template_id, s.correlation_id,
  s.created_ms, s.live_branch, s.owner, s.fence, s.forked_from, s.max_runs_retained, s.max_events_per_run,
  s.max_event_bytes_per_run, s.max_trace_events, s.max_terminal_subagent_tasks, s.run_count, o.options, o.requires,
  o.durable_memory
FROM session s LEFT JOIN session_option o ON o.session_pk = s.session_pk
WHERE s.correlation_id = :correlation_id AND (:any_tenant_id OR s.tenant_id IS :tenant_id)
  AND (:any_principal OR s.principal IS :principal)
  AND (:any_agent_template_id OR s.agent_template_id IS :agent_template_id)
  AND s.session_pk > :after_pk
ORDER BY s.session_pk LIMIT :limit;

-- name: session_interrupted
-- Sessions whose newest run has not ended: `owner` says who had them last, NULL that it was let go.
SELECT s.session_id, i.run_id, s.owner
FROM session s
JOIN run_identity i ON i.run_pk = (SELECT max(n.run_pk) FROM run_identity n WHERE n.session_pk = s.session_pk)
JOIN run r ON r.run_pk = i.run_pk
WHERE r.status NOT IN ('completed', 'failed', 'cancelled', 'parked') ORDER BY s.session_pk;

-- name: session_without_index
-- Whether the table holds a session that the index did not find: then the index is damaged.
SELECT count(*) FROM session NOT INDEXED WHERE session_id = :session_id;
