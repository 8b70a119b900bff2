package clients

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// TestLoop uses a cache without rest for LOOP_S seconds, while somebody else
// kills a backend. Every error is one, and so is every answer that is not what
// was stored: workers have keys of their own.
func TestLoop(t *testing.T) {
	duration, err := time.ParseDuration(os.Getenv("LOOP_S") + "s")
	if err != nil {
		t.Skip("LOOP_S is not set: it is run by kill-backend/run.py")
	}
	client := gomemcache(t)
	// The patience that users of this client have: a pause is an error, too.
	client.Timeout = memcache.DefaultTimeout
	const workers = 4
	var group sync.WaitGroup
	var mutex sync.Mutex
	operations, longest := 0, time.Duration(0)
	end := time.Now().Add(duration)
	for range workers {
		group.Go(func() {
			count, slowest, err := loop(client, end)
			mutex.Lock()
			defer mutex.Unlock()
			operations += count
			longest = max(longest, slowest)
			if err != nil {
				t.Errorf("%v before the end: %v", time.Until(end), err)
			}
		})
	}
	group.Wait()
	fmt.Printf("gomemcache: %d operations, the longest took %.1f ms\n",
		operations, float64(longest.Microseconds())/1000)
}

// loop gives how many operations it made, and how long the slowest took.
func loop(client *memcache.Client, end time.Time) (int, time.Duration, error) {
	count, slowest := 0, time.Duration(0)
	timed := func(operation func() error) error {
		begin := time.Now()
		err := operation()
		slowest = max(slowest, time.Since(begin))
		count++
		return err
	}
	keys, counter := []string{}, fresh()
	for range 16 {
		keys = append(keys, fresh())
	}
	if err := client.Set(&memcache.Item{Key: counter, Value: []byte("0")}); err != nil {
		return count, slowest, fmt.Errorf("set of a counter: %w", err)
	}
	for round := uint64(1); time.Now().Before(end); round++ {
		key, value := keys[round%16], fmt.Sprint(round)
		steps := []struct {
			name string
			step func() error
		}{
			{"set", func() error {
				return client.Set(&memcache.Item{Key: key, Value: []byte(value)})
			}},
			{"get", func() error {
				item, err := client.Get(key)
				if err == nil && string(item.Value) != value {
					err = fmt.Errorf("holds %q, not %q", item.Value, value)
				}
				return err
			}},
			{"cas", func() error {
				item, err := client.Get(key)
				if err != nil {
					return err
				}
				item.Value = append(item.Value, '!')
				return client.CompareAndSwap(item)
			}},
			{"get many", func() error {
				items, err := client.GetMulti(keys)
				if expected := int(min(round, 16)); err == nil && len(items) != expected {
					err = fmt.Errorf("%d items, not %d", len(items), expected)
				}
				return err
			}},
			{"incr", func() error {
				number, err := client.Increment(counter, 1)
				if err == nil && number != round {
					err = fmt.Errorf("counts %d, not %d", number, round)
				}
				return err
			}},
		}
		for _, one := range steps {
			if err := timed(one.step); err != nil {
				return count, slowest, fmt.Errorf("%s in round %d: %w", one.name, round, err)
			}
		}
	}
	return count, slowest, nil
}
