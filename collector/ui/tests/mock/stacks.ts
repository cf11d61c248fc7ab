// Stacks of programs that are not there.

import { HOSTILE, random } from './fleet';

/** kind, module, function. */
export type FrameText = readonly [kind: number, module: string, fn: string];

export interface Stack {
  frames: FrameText[];
  share: number;
  end: number;
  /** Only before, or only after the deployment. */
  when?: 'before' | 'after';
}

const K = (fn: string): FrameText => [1, '[kernel]', fn];
const LIBC = '/usr/lib/x86_64-linux-gnu/libc.so.6';

interface App {
  start: FrameText[];
  module: string;
  kind: number;
  functions: string[];
  inlined?: string[];
  depth: number;
  kernel: number;
  truncated: number;
}

const APPS: Record<string, App> = {
  rust: {
    start: [
      [0, LIBC, '__libc_start_call_main'],
      [0, '/usr/local/bin/api-server', 'std::rt::lang_start_internal'],
      [0, '/usr/local/bin/api-server', 'tokio::runtime::scheduler::multi_thread::worker::Context::run'],
    ],
    module: '/usr/local/bin/api-server',
    kind: 0,
    functions: [
      'api::router::dispatch',
      'api::auth::verify_token',
      'hyper::proto::h1::dispatch::Dispatcher<D,Bs,I,T>::poll_inner',
      'serde_json::de::from_slice',
      'serde_json::read::SliceRead::parse_str',
      'api::catalog::search',
      'api::catalog::rank::score_candidates',
      'tantivy::query::boolean_query::score',
      'ring::digest::sha256::block_data_order',
      'rustls::record_layer::encrypt',
      'alloc::raw_vec::RawVec<T,A>::grow_amortized',
      'api::json::walk',
      'core::slice::sort::unstable::quicksort',
      'tracing_subscriber::layer::on_event',
      'h2::proto::streams::prioritize::schedule_send',
      'hashbrown::raw::RawTable<T,A>::reserve_rehash',
    ],
    inlined: [
      'core::str::from_utf8_unchecked',
      '<alloc::vec::Vec<T> as Deref>::deref',
      'core::iter::adapters::map::Map<I,F>::next',
    ],
    depth: 22,
    kernel: 0.18,
    truncated: 0.03,
  },
  nginx: {
    start: [
      [0, LIBC, '__libc_start_call_main'],
      [0, '/usr/sbin/nginx', 'main'],
      [0, '/usr/sbin/nginx', 'ngx_worker_process_cycle'],
      [0, '/usr/sbin/nginx', 'ngx_process_events_and_timers'],
    ],
    module: '/usr/sbin/nginx',
    kind: 0,
    functions: [
      'ngx_epoll_process_events',
      'ngx_http_process_request_line',
      'ngx_http_handler',
      'ngx_http_core_content_phase',
      'ngx_http_gzip_body_filter',
      'ngx_ssl_handshake',
      'ngx_http_upstream_send_request',
      'ngx_writev_chain',
      'deflate_slow',
      'ngx_http_log_handler',
      'ngx_palloc',
      'ngx_http_parse_header_line',
    ],
    depth: 12,
    kernel: 0.45,
    truncated: 0.05,
  },
  node: {
    start: [
      [0, '/usr/bin/node', 'node::Start(int, char**)'],
      [0, '/usr/bin/node', 'node::SpinEventLoopInternal(node::Environment*)'],
      [0, '/usr/bin/node', 'uv_run'],
    ],
    module: '[jit]',
    kind: 2,
    functions: [
      'JS:*renderToString /srv/app/render.js:120',
      'JS:*walk /srv/app/render.js:44',
      'JS:~resolve node:internal/modules/cjs/loader:912',
      'JS:*escapeHtml /srv/app/html.js:8',
      'JS:*next /srv/app/router.js:71',
      'JS:^processTicksAndRejections node:internal/process/task_queues:67',
      'JS:*parse node:url:151',
      'JS:*hydrate /srv/app/hydrate.js:33',
    ],
    depth: 26,
    kernel: 0.1,
    truncated: 0.04,
  },
  java: {
    start: [
      [0, LIBC, 'clone3'],
      [0, LIBC, 'start_thread'],
      [0, '/opt/jdk/lib/server/libjvm.so', 'thread_native_entry(Thread*)'],
      [0, '/opt/jdk/lib/server/libjvm.so', 'JavaThread::thread_main_inner()'],
    ],
    module: '[jit]',
    kind: 2,
    functions: [
      'java.lang.Thread::run',
      'java.util.concurrent.ThreadPoolExecutor::runWorker',
      'org.apache.spark.executor.Executor$TaskRunner::run',
      'org.apache.spark.sql.execution.WholeStageCodegenExec$$anon$1::hasNext',
      'org.apache.spark.unsafe.map.BytesToBytesMap::safeLookup',
      'org.apache.spark.util.collection.TimSort::mergeLo',
      'java.util.zip.Inflater::inflateBytesBytes',
      'sun.nio.ch.FileDispatcherImpl::read0',
      'scala.collection.Iterator$$anon$10::next',
      'org.apache.parquet.column.values.dictionary.DictionaryValuesReader::readInteger',
    ],
    depth: 30,
    kernel: 0.06,
    truncated: 0.12,
  },
  python: {
    start: [
      [0, LIBC, '__libc_start_call_main'],
      [0, '/usr/bin/python3.12', 'Py_RunMain'],
    ],
    module: '/srv/jobs/report.py',
    kind: 3,
    functions: ['<module>', 'build_report', 'fetch_rows', 'aggregate', 'render_table', 'format_number', 'walk_tree'],
    depth: 16,
    kernel: 0.08,
    truncated: 0.02,
  },
  postgres: {
    start: [
      [0, LIBC, '__libc_start_call_main'],
      [0, '/usr/lib/postgresql/16/bin/postgres', 'PostmasterMain'],
      [0, '/usr/lib/postgresql/16/bin/postgres', 'PostgresMain'],
      [0, '/usr/lib/postgresql/16/bin/postgres', 'exec_simple_query'],
    ],
    module: '/usr/lib/postgresql/16/bin/postgres',
    kind: 0,
    functions: [
      'PortalRun',
      'ExecProcNode',
      'ExecHashJoin',
      'ExecScanHashBucket',
      'heap_getnextslot',
      'index_getnext_slot',
      'hash_search_with_hash_value',
      'LWLockAcquire',
      'XLogInsertRecord',
      'slot_deform_heap_tuple',
      'ExecInterpExpr',
      'tuplesort_performsort',
      'bttextcmp',
      'AllocSetAlloc',
    ],
    depth: 18,
    kernel: 0.25,
    truncated: 0.01,
  },
  redis: {
    start: [
      [0, LIBC, '__libc_start_call_main'],
      [0, '/usr/bin/redis-server', 'main'],
      [0, '/usr/bin/redis-server', 'aeMain'],
      [0, '/usr/bin/redis-server', 'aeProcessEvents'],
    ],
    module: '/usr/bin/redis-server',
    kind: 0,
    functions: [
      'readQueryFromClient',
      'processCommand',
      'call',
      'lookupKey',
      'dictFind',
      'addReply',
      'zslInsert',
      'rdbSaveRio',
    ],
    depth: 9,
    kernel: 0.5,
    truncated: 0,
  },
  kernel: {
    start: [K('ret_from_fork_asm'), K('kthread'), K('smpboot_thread_fn'), K('run_ksoftirqd')],
    module: '[kernel]',
    kind: 1,
    functions: [
      'handle_softirqs',
      'net_rx_action',
      '__napi_poll',
      'virtnet_poll',
      'napi_gro_receive',
      'ip_rcv',
      'tcp_v4_rcv',
      'tcp_ack',
    ],
    depth: 9,
    kernel: 0,
    truncated: 0,
  },
};

const SYSCALLS: FrameText[][] = [
  [
    K('entry_SYSCALL_64_after_hwframe'),
    K('do_syscall_64'),
    K('__x64_sys_sendto'),
    K('tcp_sendmsg_locked'),
    K('tcp_write_xmit'),
    K('__dev_queue_xmit'),
  ],
  [
    K('entry_SYSCALL_64_after_hwframe'),
    K('do_syscall_64'),
    K('__x64_sys_epoll_wait'),
    K('do_epoll_wait'),
    K('schedule'),
  ],
  [
    K('entry_SYSCALL_64_after_hwframe'),
    K('do_syscall_64'),
    K('ksys_read'),
    K('vfs_read'),
    K('filemap_read'),
    K('copy_page_to_iter'),
  ],
  [K('asm_exc_page_fault'), K('handle_mm_fault'), K('clear_page_erms')],
];

const made = new Map<string, Stack[]>();

/** The stacks of an app; shares add up to about 1. */
export function stacksOf(name: string): Stack[] {
  const known = made.get(name);
  if (known) return known;
  const app = APPS[name];
  const next = random(name.length * 7919 + name.charCodeAt(0));
  const stacks: Stack[] = [];
  for (let at = 0; at < 260; at++) stacks.push(oneStack(app, next));
  if (name === 'rust') stacks.push(...deployed(app));
  stacks.push(
    { frames: [[5, '', '[lost]']], share: 0.006, end: 9 },
    { frames: [[5, '', '[other]']], share: 0.002, end: 0 },
  );
  const sum = stacks.reduce((total, stack) => total + stack.share, 0);
  for (const stack of stacks) stack.share /= sum;
  made.set(name, stacks);
  return stacks;
}

function oneStack(app: App, next: () => number): Stack {
  const frames: FrameText[] = [...app.start];
  const depth = 1 + Math.floor(next() * next() * app.depth);
  let at = Math.floor(next() * next() * app.functions.length);
  for (let level = 0; level < depth; level++) {
    // Sometimes the same again: recursion.
    if (next() > 0.14) at = (at + 1 + Math.floor(next() * next() * 4)) % app.functions.length;
    frames.push([app.kind, app.module, app.functions[at]]);
    if (app.inlined && next() < 0.15)
      frames.push([4, app.module, app.inlined[Math.floor(next() * app.inlined.length)]]);
  }
  if (next() < 0.05) frames.push([0, app.module.startsWith('/') ? app.module : LIBC, '[unknown]']);
  if (next() < app.kernel) frames.push(...SYSCALLS[Math.floor(next() * SYSCALLS.length)]);
  else if (next() < 0.2) frames.push([0, LIBC, next() < 0.5 ? '__memmove_avx_unaligned_erms' : 'malloc']);
  const truncated = next() < app.truncated;
  return {
    frames: truncated ? frames.slice(app.start.length) : frames,
    share: next() ** 3 + 0.002,
    end: truncated ? 5 : next() < 0.03 ? 13 : 0,
  };
}

function deployed(app: App): Stack[] {
  const main = [...app.start, [0, app.module, 'api::router::dispatch'] as FrameText];
  return [
    {
      frames: [...main, [0, app.module, 'api::cache::checksum_v1'], [0, app.module, 'crc32fast::baseline::update']],
      share: 2.4,
      end: 0,
      when: 'before',
    },
    {
      frames: [...main, [0, app.module, 'api::cache::checksum_v2'], [0, app.module, 'xxhash_rust::xxh3::xxh3_64_long']],
      share: 0.9,
      end: 0,
      when: 'after',
    },
    {
      frames: [
        ...main,
        [0, app.module, 'serde_json::de::from_slice'],
        [0, app.module, 'serde_json::value::de::visit_map'],
      ],
      share: 6,
      end: 0,
      when: 'after',
    },
    {
      frames: [
        ...main,
        [0, app.module, 'serde_json::de::from_slice'],
        [0, app.module, 'serde_json::value::de::visit_map'],
      ],
      share: 1.5,
      end: 0,
      when: 'before',
    },
  ];
}

/** Stacks with names that a page must survive. */
export function hostileStacks(): Stack[] {
  const names = Object.values(HOSTILE);
  const stacks: Stack[] = names.map((name, at) => ({
    frames: [
      [0, '/bin/evil', 'main'],
      [0, `/tmp/${name.slice(0, 200)}`, name],
    ],
    share: 1 + at * 0.1,
    end: 0,
  }));
  stacks.push({ frames: names.map((name): FrameText => [0, '/bin/evil', name]), share: 2, end: 2 });
  stacks.push({
    frames: Array.from({ length: 1000 }, (_, at): FrameText => [0, '/bin/evil', at % 2 ? 'even' : 'odd']),
    share: 1,
    end: 1,
  });
  return stacks;
}
