// Busy in one method that the compiler inlines only where a profile says that its call is hot.
package main

import "fmt"

type table struct{ cells [256]uint64 }

// mix is too large to be inlined otherwise.
func (t *table) mix(x uint64) uint64 {
	for _, shift := range [...]uint{7, 11, 13, 17, 19, 23} {
		x ^= t.cells[x&255] + x>>shift
		x = x*6364136223846793005 + 1442695040888963407
		if x&1023 == 0 {
			x += t.cells[(x>>32)&255] * 31
		}
		t.cells[(x>>24)&255] = x ^ t.cells[(x>>8)&255]
		x ^= x << 9
		x += t.cells[(x>>16)&255] >> 3
	}
	return x
}

func serve(t *table, turns int) uint64 {
	x := uint64(turns)
	for i := 0; i < turns; i++ {
		x = t.mix(x + uint64(i))
	}
	return x
}

func main() {
	t := &table{}
	for i := range t.cells {
		t.cells[i] = uint64(i) * 0x9e3779b97f4a7c15
	}
	for {
		if serve(t, 1_000_000) == 1 {
			fmt.Println("one")
		}
	}
}
