-- thence, file format 1: one SQLite file in WAL mode that holds whole agent sessions.
--
-- A session has branches of a log. A branch is a chain of facts: what happened, for ever, never changed. A pure
-- function folds the facts into the next step. Everything else in the file serves that log:
--   inflight    a tool call that has started and is not yet a fact        (short-lived)
--   checkpoint  how far a live run has come: a cursor, never a transcript (deleted when the run ends)
--   wait        what the world owes a run: an approval, an answer         (answered once, decided by SQLite)
--   run         one execution of a turn, its status and its totals        (bounded: max_runs_retained)
--   stream      the numbering of one run's events, or of a session's own  (goes with its run)
--   event       for eyes: what a user interface shows                     (bounded: count and bytes)
--   delta       text of an answer that is still being written             (gone when the answer is recorded)
--   trace       what each tool run cost, without arguments and output     (bounded)
--   task        a child session's work for its parent                     (finished ones bounded)
--   inbox       what everybody but the owner wants to say                 (drained by the owner)
--   owner       the processes that run sessions here                      (a kernel lock says who lives)
--
-- Floor: SQLite 3.37 (STRICT). No ->>, no unixepoch(). Packed keys: `parent << 32 | number` clusters the rows of a
-- parent, so reading and evicting them are range scans; the virtual columns beside them unpack for people.
-- Every STRICT table here is written only through statements/*.sql and, by other programs, through `event_in`.

-- ------------------------------------------------------------------ the file itself
-- One row, written with the first session. `lineage_id` is the same in all copies of the file; `generation` goes up
-- when a copy is adopted elsewhere, and makes claims of the old home void.
CREATE TABLE file(
  file_pk     INTEGER PRIMARY KEY CHECK(file_pk = 1),
  lineage_id  TEXT NOT NULL,
  created_ms  INTEGER NOT NULL,
  generation  INTEGER NOT NULL DEFAULT 1,
  allow_network_fs INTEGER NOT NULL DEFAULT 0
) STRICT;

-- ------------------------------------------------------------------ sessions
-- `owner` + `fence`: who may write for this session now. The fence only ever grows; every write of a run carries the
-- one it was claimed with. Caps are NULL when unbounded. `run_count` is cumulative: it survives
-- eviction. `terminal_tasks` is how many finished tasks are kept.
CREATE TABLE session(
  session_pk        INTEGER PRIMARY KEY AUTOINCREMENT,
  session_id        TEXT NOT NULL UNIQUE,
  workspace         TEXT NOT NULL,
  tenant_id         TEXT,
  principal         TEXT,
  agent_template_id TEXT,
  correlation_id    TEXT,
  created_ms        INTEGER NOT NULL,
  live_branch       INTEGER,
  owner             TEXT,
  fence             INTEGER NOT NULL DEFAULT 0,
  home              TEXT,
  forked_from       TEXT,
  max_runs_retained           INTEGER CHECK(max_runs_retained >= 0),
  max_events_per_run          INTEGER CHECK(max_events_per_run >= 0),
  max_event_bytes_per_run     INTEGER CHECK(max_event_bytes_per_run >= 0),
  max_trace_events            INTEGER CHECK(max_trace_events >= 0),
  max_terminal_subagent_tasks INTEGER CHECK(max_terminal_subagent_tasks >= 0),
  run_count         INTEGER NOT NULL DEFAULT 0,
  terminal_tasks    INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX session_tenant      ON session(tenant_id)         WHERE tenant_id IS NOT NULL;
CREATE INDEX session_principal   ON session(principal)         WHERE principal IS NOT NULL;
CREATE INDEX session_template    ON session(agent_template_id) WHERE agent_template_id IS NOT NULL;
CREATE INDEX session_correlation ON session(correlation_id)    WHERE correlation_id IS NOT NULL;

-- Options that shape a run, as the caller set them (unset ones are absent), and which callables it had. In a table of
-- their own so that the counters above can be rewritten without them.
CREATE TABLE session_option(
  session_pk INTEGER PRIMARY KEY,
  options    TEXT NOT NULL CHECK(json_valid(options)),
  requires   TEXT NOT NULL CHECK(json_valid(requires)),
  durable_memory TEXT CHECK(durable_memory IS NULL OR json_valid(durable_memory))
) STRICT;

-- ------------------------------------------------------------------ the log
-- A branch starts where its parent had got to. (head_seq, head_hash) beside the chain betrays a cut tail.
CREATE TABLE branch(
  branch_pk  INTEGER PRIMARY KEY AUTOINCREMENT,
  session_pk INTEGER NOT NULL,
  parent_pk  INTEGER,
  first_seq  INTEGER NOT NULL DEFAULT 1,
  head_seq   INTEGER NOT NULL,
  head_hash  BLOB NOT NULL,
  pruned_to  INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX branch_session ON branch(session_pk);

-- Which stretches of older branches a branch sees; flat, so that reading never walks a chain of parents.
CREATE TABLE ancestry(
  branch_pk   INTEGER NOT NULL,
  ancestor_pk INTEGER NOT NULL,
  first_seq   INTEGER NOT NULL,
  last_seq    INTEGER NOT NULL,
  PRIMARY KEY(branch_pk, first_seq)
) STRICT, WITHOUT ROWID;

-- hash = SHA-256(prev_hash || canonical JSON of [seq, kind, key, cause, payload text]); schema/README.md shows it in
-- ten lines of Python. No clock and no random id in `payload`: equal inputs give equal logs, byte for byte.
CREATE TABLE fact(
  id        INTEGER PRIMARY KEY,
  branch_pk INTEGER AS (id >> 32) VIRTUAL,
  seq       INTEGER AS (id & 4294967295) VIRTUAL,
  run_pk    INTEGER NOT NULL,
  fence     INTEGER NOT NULL,
  ts_ms     INTEGER NOT NULL,
  kind      TEXT NOT NULL,
  key       TEXT NOT NULL,
  cause     TEXT,
  prev_hash BLOB NOT NULL,
  hash      BLOB NOT NULL,
  blobs     TEXT,
  payload   TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX fact_key ON fact(branch_pk, key);
-- Few facts name blobs: whoever reads a log must not look at all of them to find out which.
CREATE INDEX fact_with_blobs ON fact(id) WHERE blobs IS NOT NULL;
-- Whoever opens a log begins with its newest compaction.
CREATE INDEX fact_compaction ON fact(id) WHERE kind = 'compaction.done';

-- Why and how far a branch was pruned; `hash` is that of the last fact that went.
CREATE TABLE tombstone(
  branch_pk INTEGER NOT NULL,
  seq       INTEGER NOT NULL,
  hash      BLOB NOT NULL,
  reason    TEXT NOT NULL,
  ts_ms     INTEGER NOT NULL,
  PRIMARY KEY(branch_pk, seq)
) STRICT, WITHOUT ROWID;

-- Large parts and outputs, once each, by the SHA-256 of their bytes (lower-case hex). Facts name them in `blobs`.
CREATE TABLE blob(
  sha256 TEXT NOT NULL UNIQUE,
  size   INTEGER NOT NULL,
  bytes  BLOB NOT NULL
) STRICT;
CREATE TABLE blob_ref(
  session_pk INTEGER NOT NULL,
  sha256     TEXT NOT NULL,
  PRIMARY KEY(session_pk, sha256)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_ref_sha ON blob_ref(sha256);

-- A call that has started; landed when it has a result; cleared by the commit that makes the results facts. Only calls
-- of a session's newest answer can be in flight, so their position tells them apart.
CREATE TABLE inflight(
  id          INTEGER PRIMARY KEY,
  session_pk  INTEGER AS (id >> 32) VIRTUAL,
  position    INTEGER AS (id & 4294967295) VIRTUAL,
  run_pk      INTEGER NOT NULL,
  fence       INTEGER NOT NULL,
  call_key    TEXT NOT NULL,
  tool        TEXT NOT NULL,
  effect      TEXT,
  state       TEXT NOT NULL CHECK(state IN ('started', 'landed')),
  starts      INTEGER NOT NULL DEFAULT 1,
  started_ms  INTEGER NOT NULL,
  landed_ms   INTEGER,
  blobs       TEXT,
  result      TEXT CHECK(result IS NULL OR json_valid(result)),
  CHECK((state = 'landed') = (result IS NOT NULL))
) STRICT;

-- ------------------------------------------------------------------ runs
-- Every run id ever given, for as long as the session's facts live: eviction of a run does not free its id.
-- At most one run resumes another (`resumed_from` is unique): that row is the link by which a run is superseded.
CREATE TABLE run_identity(
  run_pk       INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id       TEXT NOT NULL UNIQUE,
  session_pk   INTEGER NOT NULL,
  branch_pk    INTEGER NOT NULL,
  first_seq    INTEGER NOT NULL,
  input_sha256 TEXT NOT NULL,
  resumed_from INTEGER
) STRICT;
CREATE UNIQUE INDEX run_identity_resumed ON run_identity(resumed_from) WHERE resumed_from IS NOT NULL;
CREATE INDEX run_identity_session ON run_identity(session_pk);

CREATE TABLE run(
  run_pk       INTEGER PRIMARY KEY,
  session_pk   INTEGER NOT NULL,
  run_no       INTEGER NOT NULL,
  fence        INTEGER NOT NULL,
  status       TEXT NOT NULL CHECK(status IN
    ('created', 'planning', 'executing', 'verifying', 'parked', 'completed', 'failed', 'cancelled')),
  created_ms   INTEGER NOT NULL,
  updated_ms   INTEGER NOT NULL,
  ended_ms     INTEGER,
  rounds            INTEGER NOT NULL DEFAULT 0,
  tool_calls_count  INTEGER NOT NULL DEFAULT 0,
  prompt_tokens     INTEGER NOT NULL DEFAULT 0,
  completion_tokens INTEGER NOT NULL DEFAULT 0,
  total_tokens      INTEGER NOT NULL DEFAULT 0,
  cache_read_tokens  INTEGER NOT NULL DEFAULT 0,
  cache_write_tokens INTEGER NOT NULL DEFAULT 0,
  requests_without_usage INTEGER NOT NULL DEFAULT 0,
  resumable     INTEGER NOT NULL DEFAULT 0,
  error_code    TEXT,
  error_message TEXT,
  prompt        TEXT NOT NULL,
  result_text   TEXT
) STRICT;
CREATE UNIQUE INDEX run_fifo ON run(session_pk, run_no);

-- The cursor of a live run. It never decides anything: facts do. `state` is a cache of their fold up to `seq`, of bounded
-- size; `proof` = SHA-256(hash of that fact || state) binds it to them. A reader whose sum differs folds the facts.
CREATE TABLE checkpoint(
  run_pk     INTEGER PRIMARY KEY,
  session_pk INTEGER NOT NULL,
  branch_pk  INTEGER NOT NULL,
  seq        INTEGER NOT NULL,
  round      INTEGER NOT NULL,
  fence      INTEGER NOT NULL,
  ts_ms      INTEGER NOT NULL,
  schema_version INTEGER NOT NULL,
  counters   TEXT NOT NULL CHECK(json_valid(counters)),
  usage      TEXT NOT NULL CHECK(json_valid(usage)),
  state      TEXT,
  proof      BLOB
) STRICT;
CREATE INDEX checkpoint_session ON checkpoint(session_pk);

-- ------------------------------------------------------------------ events
-- The numbering of a run's events (stream_pk = run_pk) or of a session's own channel (stream_pk = -session_pk).
-- Cumulative: event_count is the next sequence, event_bytes the next offset; neither ever goes down. The waiting_
-- columns do the same for events that wait in the inbox.
CREATE TABLE stream(
  stream_pk     INTEGER PRIMARY KEY,
  session_pk    INTEGER NOT NULL,
  event_count   INTEGER NOT NULL DEFAULT 0,
  event_bytes   INTEGER NOT NULL DEFAULT 0,
  last_ms       INTEGER NOT NULL DEFAULT 0,
  waiting_count INTEGER NOT NULL DEFAULT 0,
  waiting_bytes INTEGER NOT NULL DEFAULT 0,
  waiting_dropped INTEGER NOT NULL DEFAULT 0
) STRICT;

-- `off` is how many bytes came before, so that the byte cap is a comparison with the newest row and counts nothing.
CREATE TABLE event(
  id        INTEGER PRIMARY KEY,
  stream_pk INTEGER AS (id >> 32) VIRTUAL,
  sequence  INTEGER AS (id & 4294967295) VIRTUAL,
  off       INTEGER NOT NULL,
  bytes     INTEGER NOT NULL,
  fence     INTEGER NOT NULL,
  ts_ms     INTEGER NOT NULL,
  type      TEXT NOT NULL,
  payload   TEXT NOT NULL
) STRICT;

-- Provisional pieces of an answer or of a tool's output, for readers in other processes. `step` is the key of the
-- answer or call they belong to; they go when it is recorded. They are
-- numbered within their run, but have no sequence, and evict nothing.
CREATE TABLE delta(
  id        INTEGER PRIMARY KEY,
  stream_pk INTEGER AS (id >> 32) VIRTUAL,
  number    INTEGER AS (id & 4294967295) VIRTUAL,
  fence     INTEGER NOT NULL,
  step      TEXT NOT NULL,
  type      TEXT NOT NULL,
  payload   TEXT NOT NULL
) STRICT;

-- Numbered one after the newest that is kept: nobody follows traces by number, so that they begin anew where a cap of 0
-- keeps none is no loss, and the session's row need not be written for each.
CREATE TABLE trace(
  id         INTEGER PRIMARY KEY,
  session_pk INTEGER AS (id >> 32) VIRTUAL,
  number     INTEGER AS (id & 4294967295) VIRTUAL,
  run_pk     INTEGER NOT NULL,
  fence      INTEGER NOT NULL,
  ts_ms      INTEGER NOT NULL,
  kind       TEXT NOT NULL,
  name       TEXT NOT NULL,
  payload    TEXT NOT NULL CHECK(json_valid(payload))
) STRICT;

-- ------------------------------------------------------------------ what the world owes, and says
CREATE TABLE wait(
  wait_pk     INTEGER PRIMARY KEY,
  session_pk  INTEGER NOT NULL,
  run_pk      INTEGER NOT NULL,
  wait_id     TEXT NOT NULL,
  kind        TEXT NOT NULL CHECK(kind IN
    ('confirmation', 'question', 'deferred', 'unknown_outcome', 'budget_hold', 'child')),
  subject     TEXT NOT NULL,
  digest      TEXT NOT NULL,
  deadline_ms INTEGER,
  fence       INTEGER NOT NULL,
  opened_ms   INTEGER NOT NULL,
  closed_ms   INTEGER,
  payload     TEXT NOT NULL CHECK(json_valid(payload)),
  UNIQUE(session_pk, wait_id)
) STRICT;
CREATE INDEX wait_open ON wait(session_pk) WHERE closed_ms IS NULL;
CREATE INDEX wait_run  ON wait(run_pk);
-- One row per wait: inserting it is what decides who answered. `expired`: nobody did, and the deadline has passed.
CREATE TABLE wait_answer(
  wait_pk     INTEGER PRIMARY KEY,
  value       TEXT NOT NULL CHECK(json_valid(value)),
  by          TEXT,
  digest      TEXT NOT NULL,
  answered_ms INTEGER NOT NULL,
  expired     INTEGER NOT NULL DEFAULT 0 CHECK(expired IN (0, 1))
) STRICT;

-- What everybody but the owner wants to say. `stream_pk` names the run (or the session's channel) it is about.
CREATE TABLE inbox(
  inbox_pk   INTEGER PRIMARY KEY,
  session_pk INTEGER NOT NULL,
  stream_pk  INTEGER NOT NULL,
  kind       TEXT NOT NULL CHECK(kind IN ('event', 'cancel', 'interrupt', 'steer', 'answer')),
  request_id TEXT,
  waiting_no INTEGER NOT NULL,
  off        INTEGER NOT NULL,
  bytes      INTEGER NOT NULL,
  ts_ms      INTEGER NOT NULL,
  type       TEXT NOT NULL,
  payload    TEXT NOT NULL CHECK(json_valid(payload))
) STRICT;
CREATE INDEX inbox_session ON inbox(session_pk);
CREATE INDEX inbox_waiting ON inbox(stream_pk, waiting_no) WHERE kind = 'event';

-- Request ids already taken, remembered as long as their run (those of a session's channel: as long as the window of
-- its events): the same one again is ignored.
CREATE TABLE request(
  session_pk INTEGER NOT NULL,
  request_id TEXT NOT NULL,
  stream_pk  INTEGER NOT NULL,
  taken_no   INTEGER NOT NULL,
  PRIMARY KEY(session_pk, request_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX request_stream ON request(stream_pk, taken_no);

-- Processes that run sessions in this file. A row says nothing about life: the kernel lock on <db>-owner-<owner> does.
CREATE TABLE owner(
  owner     TEXT PRIMARY KEY,
  pid       INTEGER NOT NULL,
  program   TEXT NOT NULL,
  since_ms  INTEGER NOT NULL
) STRICT;

-- A child session's work for its parent run. Running tasks are never evicted.
CREATE TABLE task(
  task_pk       INTEGER PRIMARY KEY AUTOINCREMENT,
  session_pk    INTEGER NOT NULL,
  task_id       TEXT NOT NULL,
  run_pk        INTEGER,
  call_key      TEXT,
  child_session_id TEXT,
  agent         TEXT NOT NULL,
  description   TEXT NOT NULL,
  status        TEXT NOT NULL CHECK(status IN ('running', 'parked', 'completed', 'failed', 'cancelled')),
  fence         INTEGER NOT NULL,
  started_ms    INTEGER NOT NULL,
  updated_ms    INTEGER NOT NULL,
  finished_ms   INTEGER,
  success       INTEGER,
  output        TEXT,
  progress      TEXT CHECK(progress IS NULL OR json_valid(progress)),
  UNIQUE(session_pk, task_id),
  CHECK((finished_ms IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled')))
) STRICT;
CREATE INDEX task_finished ON task(session_pk, finished_ms, task_pk) WHERE finished_ms IS NOT NULL;
