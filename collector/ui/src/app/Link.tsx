// Links of the page to itself.

import type { ComponentChildren } from 'preact';
import type { State } from '../state/address';
import { useAddressOf } from '../state/store';

interface Props {
  to: Partial<State>;
  class?: string;
  title?: string;
  'aria-current'?: 'page';
  onClick?: () => void;
  children: ComponentChildren;
}

/** Leads to the state with a change; can be opened in another tab. */
export function Link({ to, ...attributes }: Props) {
  return <a {...attributes} href={useAddressOf(to)} />;
}
