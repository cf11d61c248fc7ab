// Views of the page that people saved, and snapshots: views whose profiles are kept.

import { useState } from 'preact/hooks';
import { FilterInput } from '../app/FilterInput';
import { Link } from '../app/Link';
import type { PageProps } from '../app/page';
import { Answer, CopyButton, Empty, Icon, Name, Popover, TroubleBox } from '../app/parts';
import { type ColumnOf, SortedTable } from '../app/sorting';
import type { SavedView } from '../gen/fleetprof/collector/v1/views_pb';
import { EvidenceFacts } from '../incidents/EvidenceFacts';
import { EvidenceProfile } from '../incidents/EvidenceProfile';
import { useChange } from '../incidents/useChange';
import { ownAddress } from '../incidents/words';
import { useQuery } from '../query/useQuery';
import { setState, useViewState } from '../state/store';
import * as format from '../text/format';
import { shown } from '../text/printable';
import { toMs } from '../time/range';
import { deleteView, listViews } from './client';
import '../incidents/incidents.css';

export function ViewsPage(props: PageProps) {
  const { saved } = useViewState('saved');
  const [turn, setTurn] = useState(0);
  const query = useQuery(`views\n${turn} ${props.selectionKey}`, listViews);
  if (saved !== '')
    return (
      <Answer query={query} what="the snapshot" room="graph">
        {({ views }) => <Snapshot of={views.find((one) => String(one.id) === saved)} number={saved} />}
      </Answer>
    );
  return (
    <section class="page" aria-label="Saved views">
      <header class="page-head">
        <h2>Saved views</h2>
        <FilterInput label="Filter views" placeholder="Filter by name or person" />
      </header>
      <Answer query={query} what="the saved views" room="table">
        {({ views, leftOut }) => (
          <>
            {leftOut > 0n && <p class="notice">{format.count(Number(leftOut))} older views are not listed.</p>}
            <Rows {...props} views={views} again={() => setTurn((value) => value + 1)} />
          </>
        )}
      </Answer>
    </section>
  );
}

function Rows(props: PageProps & { views: readonly SavedView[]; again: () => void }) {
  const { filter, sort } = useViewState('filter', 'sort');
  const { busy, trouble, run } = useChange();
  const remove = (id: bigint) => void run(async () => deleteView(id).then(props.again));
  const wanted = filter.toLowerCase();
  const matches = (one: SavedView) => [one.name, one.by].some((text) => text.toLowerCase().includes(wanted));
  return (
    <>
      {trouble && <TroubleBox trouble={trouble} />}
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of saved views">
        <SortedTable
          caption="Saved views"
          columns={columns(props, busy, remove)}
          rows={props.views.filter(matches)}
          sort={sort}
          onSort={(next) => setState({ sort: next })}
          keyOf={(one) => String(one.id)}
          empty={
            <Empty title={props.views.length ? 'No matching views' : 'No saved views'}>
              {!props.views.length && (
                <p>
                  Save a view in the menu <i>Link</i>. <i>Keep …</i> at a profile or a comparison makes a snapshot,
                  which shows the same after its data has expired.
                </p>
              )}
            </Empty>
          }
        />
      </div>
    </>
  );
}

function columns(props: PageProps, busy: boolean, remove: (id: bigint) => void): ColumnOf<SavedView>[] {
  const saved = (one: SavedView) => toMs(one.savedUnixNs);
  return [
    {
      key: 'name',
      title: 'View',
      by: (one) => one.name,
      cell: (one) => {
        const address = ownAddress(one.address);
        const name = <Name text={one.name} max={120} />;
        if (one.snapshot) return <Link to={{ saved: String(one.id) }}>{name}</Link>;
        return address === '' ? name : <a href={address}>{name}</a>;
      },
    },
    {
      key: 'kind',
      title: 'Shows',
      by: (one) => (one.snapshot ? 'a' : 'b'),
      cell: (one) =>
        one.snapshot ? <EvidenceFacts of={one.snapshot} /> : <span class="soft">what is stored now</span>,
    },
    {
      key: 'saved',
      title: 'Saved',
      number: true,
      by: saved,
      cell: (one) => <span title={format.stamp(saved(one))}>{format.ago(saved(one), props.now())}</span>,
    },
    { key: 'by', title: 'By', by: (one) => one.by, cell: (one) => <Name text={one.by} max={60} /> },
    {
      key: 'delete',
      title: 'Delete',
      cell: (one) => (
        <Popover class="small-button" align="right" title={`Remove view ${one.id}`} label="Delete">
          {(close) => (
            <div class="menu">
              <p>This deletes the view{one.snapshot && ' and its profiles'} for everyone. You cannot undo it.</p>
              <button
                type="button"
                disabled={busy}
                onClick={() => {
                  close();
                  remove(one.id);
                }}
              >
                Delete view {String(one.id)}
              </button>
            </div>
          )}
        </Popover>
      ),
    },
  ];
}

function Snapshot({ of, number }: { of: SavedView | undefined; number: string }) {
  const address = ownAddress(of?.address ?? '');
  return (
    <section class="capture-view evidence-view" aria-label="Snapshot">
      <header class="page-head">
        <Link class="back" to={{ saved: '' }}>
          <Icon of="left" /> Saved views
        </Link>
        <h2>{of ? <Name text={of.name} max={120} /> : `Snapshot ${shown(number, 20)}`}</h2>
      </header>
      {of?.snapshot ? (
        <>
          <p class="soft">
            <EvidenceFacts of={of.snapshot} /> · saved {format.stamp(toMs(of.savedUnixNs))} by{' '}
            <Name text={of.by} max={60} />
          </p>
          <p class="entry-files">
            <CopyButton title="Copy a link to this snapshot" text={() => location.href}>
              Copy link
            </CopyButton>
            {address !== '' && <a href={address}>Open the page at this view</a>}
          </p>
          <EvidenceProfile of={of.snapshot} />
        </>
      ) : (
        <Empty title="Snapshot not found">
          <p>It was deleted, or you may not see it.</p>
        </Empty>
      )}
    </section>
  );
}
