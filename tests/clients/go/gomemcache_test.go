package clients

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func gomemcache(t testing.TB) *memcache.Client {
	client := memcache.New(address(t, "MEMCACHED_ADDR"))
	client.Timeout = 5 * time.Second
	client.MaxIdleConns = 16
	t.Cleanup(func() { client.Close() })
	return client
}

func expect(t testing.TB, client *memcache.Client, key, value string) {
	t.Helper()
	item, err := client.Get(key)
	check(t, err)
	if string(item.Value) != value {
		t.Fatalf("%s holds %q, not %q", key, item.Value, value)
	}
}

func expectError(t testing.TB, err, expected error) {
	t.Helper()
	if !errors.Is(err, expected) {
		t.Fatalf("the error is %v, not %v", err, expected)
	}
}

func TestGomemcacheSetGetDelete(t *testing.T) {
	t.Parallel()
	client, key := gomemcache(t), fresh()
	_, err := client.Get(key)
	expectError(t, err, memcache.ErrCacheMiss)
	check(t, client.Set(&memcache.Item{Key: key, Value: []byte("value"), Flags: 1<<32 - 1}))
	item, err := client.Get(key)
	check(t, err)
	if string(item.Value) != "value" || item.Flags != 1<<32-1 {
		t.Fatalf("%+v", item)
	}
	check(t, client.Delete(key))
	expectError(t, client.Delete(key), memcache.ErrCacheMiss)
}

func TestGomemcacheAddReplaceAppendPrepend(t *testing.T) {
	t.Parallel()
	client, key := gomemcache(t), fresh()
	item := func(value string) *memcache.Item {
		return &memcache.Item{Key: key, Value: []byte(value)}
	}
	expectError(t, client.Replace(item("0")), memcache.ErrNotStored)
	expectError(t, client.Append(item("0")), memcache.ErrNotStored)
	expectError(t, client.Prepend(item("0")), memcache.ErrNotStored)
	check(t, client.Add(item("1")))
	expectError(t, client.Add(item("2")), memcache.ErrNotStored)
	check(t, client.Replace(item("3")))
	check(t, client.Append(item(">")))
	check(t, client.Prepend(item("<")))
	expect(t, client, key, "<3>")
}

func TestGomemcacheCompareAndSwap(t *testing.T) {
	t.Parallel()
	client, key := gomemcache(t), fresh()
	check(t, client.Set(&memcache.Item{Key: key, Value: []byte("one")}))
	first, err := client.Get(key)
	check(t, err)
	second, err := client.Get(key)
	check(t, err)
	first.Value = []byte("two")
	check(t, client.CompareAndSwap(first))
	second.Value = []byte("three")
	expectError(t, client.CompareAndSwap(second), memcache.ErrCASConflict)
	expect(t, client, key, "two")
	gone, err := client.Get(key)
	check(t, err)
	check(t, client.Delete(key))
	if err := client.CompareAndSwap(gone); err == nil {
		t.Fatal("a swap of what is not there succeeded")
	}
}

func TestGomemcacheSwapsAreAtomic(t *testing.T) {
	t.Parallel()
	client, key := gomemcache(t), fresh()
	check(t, client.Set(&memcache.Item{Key: key, Value: []byte("")}))
	const workers, rounds = 8, 25
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for done := 0; done < rounds; {
				item, err := client.Get(key)
				if err != nil {
					t.Error(err)
					return
				}
				item.Value = append(item.Value, 'x')
				switch err := client.CompareAndSwap(item); {
				case err == nil:
					done++
				case !errors.Is(err, memcache.ErrCASConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	expect(t, client, key, strings.Repeat("x", workers*rounds))
}

func TestGomemcacheNumbers(t *testing.T) {
	t.Parallel()
	client, key := gomemcache(t), fresh()
	_, err := client.Increment(key, 1)
	expectError(t, err, memcache.ErrCacheMiss)
	check(t, client.Set(&memcache.Item{Key: key, Value: []byte("18446744073709551615")}))
	for _, step := range []struct {
		change   func(string, uint64) (uint64, error)
		by, then uint64
	}{
		{client.Increment, 11, 10},
		{client.Decrement, 1, 9},
		{client.Decrement, 100, 0},
		{client.Increment, 1<<64 - 1, 1<<64 - 1},
	} {
		value, err := step.change(key, step.by)
		check(t, err)
		if value != step.then {
			t.Fatalf("%d, not %d", value, step.then)
		}
	}
	check(t, client.Set(&memcache.Item{Key: key, Value: []byte("word")}))
	if _, err := client.Increment(key, 1); err == nil ||
		!strings.Contains(err.Error(), "cannot increment or decrement non-numeric value") {
		t.Fatalf("incrementing a word: %v", err)
	}
}

func TestGomemcacheIncrementsAreAtomic(t *testing.T) {
	t.Parallel()
	client, key := gomemcache(t), fresh()
	check(t, client.Set(&memcache.Item{Key: key, Value: []byte("0")}))
	const workers, rounds = 8, 100
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for range rounds {
				if _, err := client.Increment(key, 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	expect(t, client, key, fmt.Sprint(workers*rounds))
}

func TestGomemcacheExpiry(t *testing.T) {
	t.Parallel()
	client := gomemcache(t)
	short, touched, got, past := fresh(), fresh(), fresh(), fresh()
	expectError(t, client.Touch(short, 10), memcache.ErrCacheMiss)
	for _, key := range []string{short, touched, got} {
		check(t, client.Set(&memcache.Item{Key: key, Value: []byte("value"), Expiration: 1}))
	}
	check(t, client.Touch(touched, 100))
	item, err := client.GetAndTouch(got, 100)
	check(t, err)
	if string(item.Value) != "value" {
		t.Fatalf("%+v", item)
	}
	yesterday := int32(time.Now().Add(-24 * time.Hour).Unix())
	check(t, client.Set(&memcache.Item{Key: past, Value: []byte("value"), Expiration: yesterday}))
	_, err = client.Get(past)
	expectError(t, err, memcache.ErrCacheMiss)
	time.Sleep(1500 * time.Millisecond)
	_, err = client.Get(short)
	expectError(t, err, memcache.ErrCacheMiss)
	expect(t, client, touched, "value")
	expect(t, client, got, "value")
}

func TestGomemcacheGetMulti(t *testing.T) {
	t.Parallel()
	client := gomemcache(t)
	keys := []string{}
	for number := range 500 {
		key := fresh()
		keys = append(keys, key)
		check(t, client.Set(&memcache.Item{Key: key, Value: fmt.Append(nil, number)}))
	}
	items, err := client.GetMulti(append(keys, fresh()))
	check(t, err)
	if len(items) != len(keys) {
		t.Fatalf("%d items of %d", len(items), len(keys))
	}
	for number, key := range keys {
		if string(items[key].Value) != fmt.Sprint(number) {
			t.Fatalf("%s holds %q, not %d", key, items[key].Value, number)
		}
	}
}

func TestGomemcacheValuesAndKeys(t *testing.T) {
	t.Parallel()
	client := gomemcache(t)
	for _, value := range [][]byte{
		{},
		[]byte("\r\nEND\r\nVALUE x 0 1\r\n\x00"),
		bytes.Repeat([]byte{0, 1, 2, 255}, 16384),
		bytes.Repeat([]byte("m"), 1_000_000),
	} {
		key := fresh()
		check(t, client.Set(&memcache.Item{Key: key, Value: value}))
		expect(t, client, key, string(value))
	}
	longest := fresh()
	longest += strings.Repeat("k", 250-len(longest))
	check(t, client.Set(&memcache.Item{Key: longest, Value: []byte("value")}))
	expect(t, client, longest, "value")
	err := client.Set(&memcache.Item{Key: fresh(), Value: make([]byte, 1<<20+1)})
	if err == nil || !strings.Contains(err.Error(), "object too large for cache") {
		t.Fatalf("a value of more than 1 MiB: %v", err)
	}
	expect(t, client, longest, "value")
	check(t, client.Ping())
}

// In nobody's way: the parallel tests run after this one has ended.
func TestGomemcacheFlushAll(t *testing.T) {
	client, key := gomemcache(t), fresh()
	check(t, client.Set(&memcache.Item{Key: key, Value: []byte("value")}))
	check(t, client.FlushAll())
	_, err := client.Get(key)
	expectError(t, err, memcache.ErrCacheMiss)
	check(t, client.Set(&memcache.Item{Key: key, Value: []byte("later")}))
	expect(t, client, key, "later")
}
