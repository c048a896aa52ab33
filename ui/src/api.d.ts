// Written by ui/api_types.py from /v1/openapi.json; do not edit.

export interface ActList {
  acts: ActView[];
}

export interface ActView {
  at: string;
  uid: number;
  user: string;
  verb: string;
  jobs: number[][];
  what: string;
}

export interface ActionReply {
  done: ActionView[];
  skipped: ActionView[];
  sweeps: number[];
  count: number;
  overdue: string[];
}

export interface ActionView {
  id: number;
  label: string;
  state: string;
  why: string;
  unreachable: string[];
}

export interface AddNode {
  name: string;
  address: string;
  key: string | null;
  shared: boolean;
  force: boolean;
  options: Record<string, string>;
}

export interface AddNotifyRule {
  target: string;
  when: string;
}

export interface AheadView {
  label: string;
  why: string;
}

export interface AlarmList {
  alarms: AlarmView[];
}

export interface AlarmView {
  kind: string;
  job: number | null;
  label: string | null;
  node: string | null;
  gpu: string | null;
  since: string;
  text: string;
  action: string;
  response: string;
  evidence: string;
}

export interface AllocationView {
  id: string;
  reason: string | null;
  start: string | null;
  end: string | null;
}

export interface ArrayIndex {
  id: number;
  index: number | null;
}

export interface AttemptView {
  attempt: number;
  started_at: string | null;
  ended_at: string | null;
  cause: string | null;
  exit_code: number | null;
}

export interface Backup {
  path: string;
}

export interface BackupReply {
  path: string;
  bytes: number;
}

export interface BestTrial {
  value: number | null;
  id: number;
  label: string;
  params: Record<string, unknown>;
}

export interface Cancel {
  select: string[];
  client: string | null;
  only: string | null;
}

export interface ChangeSweep {
  max_running: number | null;
  priority: number | null;
}

export interface CheckNode {
  name: string;
}

export interface CheckView {
  what: string;
  state: string;
  text: string;
}

export interface ChosenPolicy {
  own: boolean;
  chosen: string;
  policy: string;
  since: string | null;
  about: string;
  why: string | null;
  parameters: Record<string, number>;
  changed: Record<string, number>;
}

export interface ConstraintView {
  name: string;
  needs: string | null;
  free: string | null;
  text: string;
  details: string[];
}

export interface ContainerView {
  image: string;
  mounts: MountView[];
  ports: number[][];
}

export interface CreateSession {
  rights: string;
  seconds: number;
  note: string;
  share: boolean;
  logs: boolean;
}

export interface CreateToken {
  name: string;
  rights: string;
  days: number;
}

export interface DaemonStatus {
  pid: number;
  version: string;
  api: string;
  since: string | null;
  socket: string;
  state_dir: string;
  log: string;
  mode: string;
  user: string;
  draining: boolean;
  counts: Record<string, number>;
  policy: string;
  gpus: number;
  node: string;
  machines: string[];
  connecting: string[];
  queued: string[];
  unreachable: string[];
  store: string;
  listeners: ListenerView[];
  names: string[];
  thresholds: GpuThresholds;
  seq: number;
  warnings: string[];
  faults: string[];
}

export interface DeliveryReply {
  target: string;
  error: string | null;
}

export interface Dismiss {
  select: string[];
}

export interface Drain {
  devices: string[];
  reason: string;
}

export interface DrainReply {
  devices: string[];
  machines: string[];
  running: number[];
  labels: string[];
}

export interface Edit {
  select: string[];
  options: Record<string, unknown>;
  dry_run: boolean;
}

export interface ErrorDetail {
  code: string;
  message: string;
  exit: number;
}

export interface ErrorReply {
  error: ErrorDetail;
}

export interface EstimateList {
  jobs: JobEstimate[];
  more: number;
  at: string | null;
  age: number;
  futures: number;
  horizon: string | null;
  newer: boolean;
  trouble: string | null;
}

export interface EstimateView {
  at: string | null;
  start: SpanView | null;
  end: SpanView | null;
  never: string | null;
}

export interface ExportReply {
  jobs: ExportedJobs[];
  kept: KeptJob[];
}

export interface ExportedClause {
  kind: string;
  jobs: number[];
  delay: number;
}

export interface ExportedJobs {
  ids: number[];
  unheld: number[];
  label: string;
  submission: Record<string, unknown>;
  clauses: ExportedClause[];
  sweep: boolean;
  any: boolean;
}

export interface FigureView {
  text: string;
  seconds: number | null;
  gpus: number | null;
  basis: string | null;
}

export interface ForeignProcess {
  pid: number | null;
  user: string | null;
  command: string | null;
  memory: number | null;
}

export interface GpuHistoryReply {
  t: number;
  step: number;
  gpus: Record<string, GpuSeries>;
}

export interface GpuJob {
  id: number;
  label: string;
  name: string;
  user: string;
  share: string;
  memory: number | null;
  elapsed: number | null;
  state: string;
}

export interface GpuList {
  gpus: GpuView[];
  machines: string[];
  note: string | null;
}

export interface GpuSeries {
  utilization: (number | null)[];
  utilization_max: (number | null)[];
  memory: (number | null)[];
  power: (number | null)[];
  jobs: (number | null)[];
}

export interface GpuView {
  node: string;
  id: string;
  index: number | null;
  uuid: string | null;
  model: string | null;
  memory: number | null;
  memory_used: number | null;
  utilization: number | null;
  temperature: number | null;
  power: number | null;
  state: string;
  drained: string | null;
  free: string;
  held: string;
  memory_left: number | null;
  jobs: GpuJob[];
  foreign: ForeignProcess[];
  foreign_process: string | null;
}

export interface GroupShare {
  group: string;
  weight: number;
}

export interface HiddenHistory {
  client: string;
}

export interface HideHistory {
  client: string;
}

export interface History {
  jobs: JobView[];
  more: number;
}

export interface Hold {
  select: string[];
}

export interface HookView {
  exit_code: number | null;
  output: string;
}

export interface JobColumns {
  seq: number;
  boot: string;
  now: number;
  total: number;
  offset: number;
  counts: Record<string, number>;
  columns: Record<string, unknown[]>;
  dictionary: Record<string, string[]>;
}

export interface JobEstimate {
  at: string | null;
  start: SpanView | null;
  end: SpanView | null;
  never: string | null;
  id: number;
  label: string;
  name: string;
  user: string;
  state: string;
}

export interface JobList {
  jobs: JobView[];
  more: number;
  counts: Record<string, number>;
  now: string | null;
  sweeps: SweepView[];
  seq: number;
  warnings: string[];
}

export interface JobView {
  id: number;
  label: string;
  name: string;
  user: string;
  state: string;
  state_code: string;
  reason: string | null;
  reason_text: string | null;
  queue: string;
  group: string | null;
  labels: string[];
  comment: string | null;
  account: string | null;
  priority: number;
  command: string;
  directory: string;
  shell: string;
  request: RequestView;
  array: ArrayIndex | null;
  sweep: number | null;
  params: Record<string, unknown> | null;
  objective: ObjectiveView | null;
  depends: string | null;
  retry: string | null;
  if_unreachable: string | null;
  deadline_at: string | null;
  on_end: string | null;
  warning_signal: string | null;
  feed: string | null;
  client: string | null;
  container: ContainerView | null;
  restartable: boolean;
  node: string | null;
  nodes: string[];
  unreachable: boolean;
  unreachable_since: string | null;
  devices: Record<string, string[]>;
  parts: PartView[];
  gpu_uuids: string[];
  attempt: number;
  pid: number | null;
  submitted_at: string | null;
  started_at: string | null;
  ended_at: string | null;
  begin_at: string | null;
  expected_start: string | null;
  expected_end: string | null;
  elapsed: number | null;
  time_limit: number | null;
  time_left: number | null;
  exit_code: number | null;
  signal: number | null;
  cause: string | null;
  result: number | null;
  termination_note: string | null;
  dismissed: boolean;
  attempts: AttemptView[];
  training: TrainingView | null;
  external_id: string;
  hosts: string[];
  log: string | null;
  error_log: string | null;
  log_bytes: number;
  attach: string | null;
  tail: string[];
  uploads: UploadView[];
  foreseen: EstimateView;
  members: MembersView;
  hook: HookView | null;
  variables: string[];
  dependents: string[];
  alarms: AlarmView[];
  advice: string;
}

export interface KeptJob {
  id: number;
  label: string;
  why: string;
  is_running: boolean;
}

export interface Kill {
  select: string[];
  client: string | null;
  only: string | null;
  signal: string | null;
  to_script: boolean;
}

export interface LimitList {
  limits: LimitsView[];
}

export interface Limits {
  subject: string;
  max_gpus: string | null;
  max_running: string | null;
  max_pending: string | null;
  max_job_gpus: string | null;
  max_time: string | null;
  gpu_hours_per_week: string | null;
  gpu_memory: string | null;
  clear: boolean;
}

export interface LimitsChange {
  subject: string;
  changed: boolean;
  limits: LimitsView | null;
  warnings: string[];
}

export interface LimitsView {
  subject: string;
  id: number | null;
  max_gpus: string | null;
  max_running: number | null;
  max_pending: number | null;
  max_job_gpus: string | null;
  max_time: string | null;
  max_time_seconds: number | null;
  gpu_hours_per_week: number | null;
  gpu_memory: number | null;
  running: number;
  pending: number;
  gpus: string;
  gpu_memory_used: number;
  gpu_hours_used: number | null;
  gpu_hours_free_at: string | null;
}

export interface Listen {
  address: string;
  tls: boolean;
  note: Record<string, string>;
  keep: boolean;
}

export interface ListenerClosed {
  address: string;
}

export interface ListenerView {
  address: string;
  tls: boolean;
  token_file: string;
  fingerprint: string | null;
  note: Record<string, string>;
}

export interface MeasuredGpu {
  index: number | null;
  uuid: string | null;
  model: string | null;
  memory: number | null;
  memory_used: number | null;
  utilization: number | null;
}

export interface MembersView {
  label: string;
  count: number;
  causes: Record<string, number>;
}

export interface MetricsReply {
  job: number;
  label: string;
  names: string[];
  series: Record<string, ((number | null)[])[]>;
  summary: Record<string, SeriesSummary>;
  count: number;
}

export interface MountView {
  source: string;
  target: string;
  read_only: boolean;
  optional: boolean;
}

export interface Move {
  select: string[];
  where: string;
  other: string | null;
}

export interface NewReservation {
  name: string;
  begin: string | null;
  end: string | null;
  gpus: string[];
  nodes: string[];
  subjects: string[];
  user: string;
  has_begun: boolean;
  preempts: string[];
  continues: string[];
}

export interface NewToken {
  id: string;
  name: string;
  user: string;
  rights: string;
  created: string | null;
  expires: string | null;
  used: string | null;
  token: string;
}

export interface NodeAdded {
  name: string;
  address: string;
  new: boolean;
  changed: boolean;
  configured: boolean;
}

export interface NodeCheck {
  name: string;
  checks: CheckView[];
  rbac: string | null;
}

export interface NodeFit {
  node: string;
  fits_empty: boolean;
  constraints: ConstraintView[];
}

export interface NodeList {
  nodes: NodeView[];
}

export interface NodeMeasurement {
  cores: number;
  load: number | null;
  free_cores: number | null;
  memory: number | null;
  memory_available: number | null;
  disk_free: number | null;
  tools: string[];
  gpus: MeasuredGpu[];
}

export interface NodeRemoved {
  name: string;
  lost: number[];
  configured: boolean;
}

export interface NodeView {
  name: string;
  kind: string;
  cluster: string | null;
  pilots: PilotCounts | null;
  shape: string | null;
  allocation: AllocationView | null;
  state: string;
  why: string | null;
  notes: string[];
  address: string | null;
  key: string | null;
  shared: boolean;
  configured: boolean;
  resources: Record<string, ResourceView>;
  jobs: number;
  since: string | null;
  measured: NodeMeasurement | null;
}

export interface ObjectiveView {
  value: number | null;
  step: number | null;
  stopped: boolean;
}

export interface OpenSession {
  code: string;
}

export interface OpenedSession {
  id: string;
  rights: string;
  expires: string | null;
  user: string;
}

export interface PartView {
  node: string;
  devices: Record<string, string[]>;
  gpu_uuids: string[];
  log: string | null;
  error_log: string | null;
}

export interface Pause {
  select: string[];
}

export interface PilotCounts {
  running: number;
  queued: number;
}

export interface Policy {
  queue: string;
  name: string;
  parameters: Record<string, number | string>;
}

export interface PolicyChange {
  queue: string;
  before: ChosenPolicy;
  after: ChosenPolicy;
  changed: boolean;
  waiting: number;
  preempts: boolean;
  kept: string[];
  known: boolean;
}

export interface PolicyList {
  queues: QueuePolicy[];
  policies: PolicyView[];
}

export interface PolicyView {
  name: string;
  about: string;
  parameters: Record<string, number>;
}

export interface Queue {
  name: string;
  max_running: number | null;
  max_gpus: string | null;
  priority: number;
  strict: boolean;
  devices: string[] | null;
  resources: Resource[] | null;
  max_waiting: number | null;
  max_job_gpus: string | null;
  new: boolean;
}

export interface QueueDevice {
  type: string;
  device: string;
  capacity: string;
  free: string;
}

export interface QueueList {
  queues: QueueView[];
}

export interface QueueName {
  name: string;
}

export interface QueuePolicy {
  own: boolean;
  chosen: string;
  policy: string;
  since: string | null;
  about: string;
  why: string | null;
  parameters: Record<string, number>;
  changed: Record<string, number>;
  queue: string;
  strict: boolean;
  waiting: number;
  running: number;
}

export interface QueueView {
  name: string;
  max_running: number | null;
  max_gpus: string | null;
  max_job_gpus: string | null;
  max_waiting: number | null;
  priority: number;
  strict: boolean;
  devices: string[];
  running: number;
  resources: QueueDevice[];
}

export interface RankView {
  policy: string;
  by: string;
  position: number | null;
  of: number;
  figure: FigureView;
  overdue_in: number | null;
}

export interface RefreshNodes {
  names: string[];
}

export interface Release {
  select: string[];
}

export interface RemoveNode {
  name: string;
  force: boolean;
}

export interface ReportReply {
  offset: number;
  saved: number;
  wait: number;
  control: Record<string, string>;
}

export interface RequestView {
  gpus: string | null;
  most_gpus: string | null;
  model: string | null;
  min_vram: number | null;
  gpu_memory: number | null;
  use_gpus: string[];
  prefer_gpus: string[];
  avoid_gpus: string[];
  cpus: string | null;
  memory: number | null;
  resources: Record<string, string>;
  exclusive: boolean;
  machines: number | null;
  nodelist: string[];
  not_nodes: string[];
}

export interface ReservationCancelled {
  name: string;
}

export interface ReservationList {
  reservations: ReservationView[];
}

export interface ReservationView {
  name: string;
  begin: string | null;
  end: string | null;
  gpus: string[];
  nodes: string[];
  subjects: string[];
  user: string;
  has_begun: boolean;
}

export interface Reserve {
  begin: string;
  duration: string;
  name: string | null;
  gpus: string | null;
  nodes: string[];
  devices: string[];
  subjects: string[];
}

export interface Resource {
  type: string;
  device: string;
  capacity: string;
}

export interface ResourceView {
  total: string;
  free: string;
  held: string;
  devices: string[];
}

export interface Resume {
  select: string[];
}

export interface Retry {
  select: string[];
  running: boolean;
  failed: boolean;
  all: boolean;
  since: string | null;
  same_gpus: boolean;
  dry_run: boolean;
}

export interface RuleView {
  id: number;
  target: string;
  when: string;
  user: string;
  note: string | null;
}

export interface SeriesSummary {
  count: number;
  last: (number | null)[];
  min: (number | null)[];
  max: (number | null)[];
}

export interface SessionCode {
  id: string;
  code: string;
  rights: string;
  expires: string | null;
}

export interface SessionEnded {
  id: string;
}

export interface SessionList {
  sessions: SessionView[];
}

export interface SessionView {
  id: string;
  rights: string;
  note: string;
  share: boolean;
  logs: boolean;
  created: string | null;
  expires: string | null;
  used: string | null;
}

export interface SetShare {
  subject: string;
  weight: number | null;
}

export interface ShareChange {
  subject: string;
  weight: number | null;
  changed: boolean;
}

export interface ShareList {
  shares: ShareView[];
  groups: GroupShare[];
  queues: string[];
}

export interface ShareView {
  user: string;
  weight: number;
  source: string | null;
  part: number;
  usage: number;
  usage_part: number;
  gpus: number;
  pending: number;
  penalty: number;
}

export interface SpanView {
  low: string | null;
  likely: string | null;
  high: string | null;
  kind: string;
  basis: string;
}

export interface Stop {
  mode: string;
  check: boolean;
  gpus: string | null;
  resources: string | null;
  listen: string | null;
  db: string | null;
}

export interface StopReply {
  running: number[];
  text: string;
}

export interface StopView {
  why: string;
  by: string | null;
  ignored: boolean;
}

export interface StuckJob {
  id: number;
  text: string;
}

export interface Submit {
  directory: string;
  shell: string;
  key: string;
  options: Record<string, unknown>;
  environment: Record<string, string>;
  own_environment: boolean;
  umask: number;
  dry_run: boolean;
  what: What;
}

export interface SubmitReply {
  first: number | null;
  last: number | null;
  count: number;
  label: string | null;
  warnings: string[];
  expected_start: string | null;
  nodes: string[];
}

export interface Sweep {
  directory: string;
  shell: string;
  key: string;
  options: Record<string, unknown>;
  environment: Record<string, string>;
  own_environment: boolean;
  umask: number;
  dry_run: boolean;
  definition: Record<string, unknown>;
  new: boolean;
}

export interface SweepDetail {
  sweep: SweepView;
  definition: Record<string, unknown>;
  trials: TrialView[];
}

export interface SweepList {
  sweeps: SweepView[];
}

export interface SweepReply {
  sweep: number | null;
  label: string | null;
  name: string;
  added: number;
  retried: number;
  total: number | null;
  counts: Record<string, number>;
  warnings: string[];
  commands: string[];
}

export interface SweepView {
  id: number;
  label: string;
  name: string;
  user: string;
  method: string;
  metric: string | null;
  goal: string;
  state: string;
  counts: Record<string, number>;
  issued: number;
  total: number | null;
  best: BestTrial | null;
  max_running: number | null;
  priority: number;
  held: boolean;
  reading: number;
  note: string | null;
  created_at: string | null;
  ended_at: string | null;
  eta_seconds: number | null;
  eta: string | null;
  foreseen: EstimateView | null;
}

export interface TargetList {
  targets: TargetView[];
  rules: RuleView[];
}

export interface TargetView {
  name: string;
  kind: string;
  on: string[];
  sent: number;
  pending: number;
  failed: number;
  error: string | null;
}

export interface TokenList {
  tokens: TokenView[];
}

export interface TokenRevoked {
  id: string;
  name: string;
}

export interface TokenView {
  id: string;
  name: string;
  user: string;
  rights: string;
  created: string | null;
  expires: string | null;
  used: string | null;
}

export interface TrainingView {
  uuid: string;
  epochs_done: number;
  epochs: number | null;
  batch_size: number | null;
  training_set_size: number | null;
  snapshots: string | null;
  checkpoints: string | null;
  listening: boolean;
  preemptions: number;
  stopping: StopView | null;
  overran: boolean;
  ran_seconds: number | null;
  epoch_seconds: number | null;
  step_seconds: number | null;
  expected_seconds: number | null;
  estimate_seconds: number | null;
  remaining_seconds: number | null;
  memory_reserved: number | null;
  memory_peak: number | null;
  memory_now: number | null;
  shortages: number;
  elastic: (number | null)[] | null;
  gpus_wanted: number | null;
  shares: boolean;
  family: string;
  speedups: ((number | null)[])[];
  epoch: number | null;
  step: number | null;
  metrics: Record<string, unknown>;
}

export interface TrialView {
  id: number;
  label: string;
  number: number | null;
  state: string;
  state_code: string;
  params: Record<string, unknown>;
  value: number | null;
  step: number | null;
  stopped: boolean;
  attempt: number;
  started_at: string | null;
  ended_at: string | null;
  elapsed: number | null;
  cause: string | null;
  node: string | null;
  devices: Record<string, string[]>;
}

export interface TryTarget {
  target: string;
}

export interface Undrain {
  devices: string[];
}

export interface UploadView {
  node: string;
  sent_bytes: number;
  total_bytes: number | null;
  seconds_left: number | null;
  text: string;
}

export interface UsageGroup {
  key: string;
  jobs: number;
  failed: number;
  gpu_hours: number;
  wasted_gpu_hours: number;
  measured_gpu_hours: number;
  busy_gpu_hours: number;
  utilization: number | null;
  kwh: number | null;
  cpu_hours: number | null;
  rss_peak: number | null;
  wait_p50: number | null;
  wait_p90: number | null;
  cost: number | null;
}

export interface UsageReply {
  id: number;
  label: string;
  attempts: UsageView[];
  total: UsageView;
}

export interface UsageSummary {
  by: string;
  since: string | null;
  until: string | null;
  groups: UsageGroup[];
  total: UsageGroup;
  energy: string;
  currency: string;
  days: Record<string, Record<string, number>>;
}

export interface UsageView {
  attempt: number | null;
  seconds: number | null;
  gpu_seconds: number;
  wasted_gpu_seconds: number;
  measured_seconds: number;
  busy_gpu_seconds: number;
  energy_joules: number | null;
  utilization: number | null;
  memory_peak: number | null;
  cpu_seconds: number | null;
  rss_peak: number | null;
}

export interface Wait {
  select: string[];
  any: boolean;
  timeout: number | null;
}

export interface WaitReply {
  finished: boolean;
  count: number;
  jobs: JobView[];
  stuck: StuckJob[];
  notes: string[];
}

export interface What {
  line: string | null;
  argv: string[] | null;
  script: string | null;
  script_name: string | null;
  args: string[];
  lines: string[] | null;
}

export interface WhyView {
  id: number;
  label: string;
  state: string;
  name: string;
  reason: string | null;
  text: string | null;
  position: number | null;
  ahead: string[];
  coming: string[];
  standing: RankView | null;
  before: AheadView[];
  unblocks: string[];
  room: string[];
  expected_start: string | null;
  expected_end: string | null;
  foreseen: EstimateView;
  nodes: NodeFit[];
  alarms: AlarmView[];
}

export interface GpuThresholds {
  load: number;
  memory: number;
  processes: boolean;
}

export interface RequestsThresholds {
  load: number | null;
  memory: number | null;
  processes: boolean | null;
}
