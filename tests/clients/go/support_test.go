// Package clients holds the tests of Go clients; the environment names the
// servers.
package clients

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"testing"
)

func address(t testing.TB, name string) string {
	t.Helper()
	address := os.Getenv(name)
	if address == "" {
		t.Fatalf("%s is not set: HOST:PORT of the server under test", name)
	}
	return address
}

// fresh gives a key that no other test uses.
func fresh() string {
	random := make([]byte, 12)
	rand.Read(random)
	return "key-" + hex.EncodeToString(random)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
