// Busy in methods below functions of its own, on several goroutines, with garbage to collect, calls
// of the runtime's clock, until it is killed or its life is over.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strings"
	"sync"
	"time"
)

const life = 600 * time.Second

// Ledger has the method that most of the time is spent in.
type Ledger struct {
	sums map[string]uint64
}

//go:noinline
func (l *Ledger) Settle(turns int) uint64 {
	x := uint64(1)
	for i := 0; i < turns; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

//go:noinline
func (l *Ledger) Post(number int) {
	name := fmt.Sprintf("account-%d", number%997)
	l.sums[name] += fee(l.Settle(2000))
}

// Both are inlined, one into the other.
func fee(sum uint64) uint64 {
	return rounded(sum)*3 + 7
}

func rounded(sum uint64) uint64 {
	return (sum ^ sum>>17) * 0x9e3779b9
}

//go:noinline
func smallest(items []string) string {
	sort.Strings(items)
	return items[0]
}

// Nested recurses, so that stacks grow.
//
//go:noinline
func nested(depth int, l *Ledger) uint64 {
	if depth == 0 {
		return l.Settle(3000)
	}
	return nested(depth-1, l) + uint64(depth)
}

func serve(number int, end time.Time, done *sync.WaitGroup) {
	defer done.Done()
	ledger := &Ledger{sums: map[string]uint64{}}
	for time.Now().Before(end) {
		for i := 0; i < 20; i++ {
			ledger.Post(number + i)
		}
		names := strings.Fields(strings.Repeat("gamma beta alpha ", 40))
		if smallest(names) == "" || nested(24, ledger) == 0 {
			os.Exit(1)
		}
	}
}

func main() {
	end := time.Now().Add(life)
	var done sync.WaitGroup
	for i := 0; i < runtime.GOMAXPROCS(0); i++ {
		done.Add(1)
		go serve(i, end, &done)
	}
	done.Wait()
}
