// Whose width the frames of a comparison have.

import { Choice } from '../app/parts';
import { setState, useDisplayState } from '../state/store';

export function WidthChoice() {
  const { width } = useDisplayState('width');
  return (
    <Choice
      label="Width"
      value={width}
      of={[
        ['both', 'Width: larger side', 'The larger of both: what is gone keeps its place'],
        ['before', 'before', 'Width is before'],
        ['after', 'after', 'Width is after; what is gone has none'],
      ]}
      onChange={(next) => setState({ width: next })}
    />
  );
}
