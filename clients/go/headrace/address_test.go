package headrace_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headrace/headrace/clients/go/headrace"
)

func TestAddressesThatAreNone(t *testing.T) {
	for address, remedy := range map[string]string{
		"7440":                "HOST:PORT",
		"host:0":              "HOST:PORT",
		"host:99999":          "HOST:PORT",
		"a:1, b":              "HOST:PORT",
		"::1:7440":            "[::1]:7440",
		"a:1,tls://b:2":       "once",
		",":                   "HOST:PORT",
		"http://localhost:80": "HOST:PORT",
	} {
		_, err := headrace.New(address)
		if !errors.Is(err, headrace.InvalidField) || !strings.Contains(err.Error(), remedy) {
			t.Errorf("%q: got %v, want a remedy with %q", address, err, remedy)
		}
	}
}

func TestAddressesThatAreSome(t *testing.T) {
	for _, address := range []string{"localhost:7440", "[::1]:1", "a:1, b:2,", "tls://a:1,tls://b:2", "unix:/run/headrace.sock"} {
		client, err := headrace.New(address)
		if err != nil {
			t.Errorf("%q: %v", address, err)
			continue
		}
		_ = client.Close()
	}
}

func TestTheHomeNamesTheAddress(t *testing.T) {
	home, net := t.TempDir(), newNetwork()
	t.Setenv("HEADRACE_HOME", home)
	t.Setenv("HEADRACE_ADDRESS", "")
	file := filepath.Join(home, "address")
	if err := os.WriteFile(file, []byte("127.0.0.1:11\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := net.serve(t, "127.0.0.1:11", digits().register)
	client := net.client(t, "")
	if _, err := client.Study("digits").Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop() // and it starts again on another port
	net.serve(t, "127.0.0.1:12", digits().register)
	if err := os.WriteFile(file, []byte("127.0.0.1:12\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Study("digits").Get(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAHomeWhereNothingRunsIsNotTheDefaultAddress(t *testing.T) {
	t.Setenv("HEADRACE_HOME", t.TempDir())
	t.Setenv("HEADRACE_ADDRESS", "")
	_, err := headrace.New("")
	if !errors.Is(err, headrace.Unreachable) || !strings.Contains(err.Error(), os.Getenv("HEADRACE_HOME")) {
		t.Fatalf("got %v", err)
	}
	if _, err := headrace.New("127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
}

func TestACertificateFileThatIsNone(t *testing.T) {
	if _, err := headrace.New("a:1", headrace.WithCA("/does/not/exist")); !errors.Is(err, headrace.InvalidField) {
		t.Fatalf("got %v", err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := headrace.New("a:1", headrace.WithCA(file)); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Fatalf("got %v", err)
	}
}
