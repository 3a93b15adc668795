package headrace_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// selfSigned creates a certificate for localhost, and its PEM file.
func selfSigned(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	made, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made})
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{made}, PrivateKey: key}, file
}

// listen starts a server on a real port, and returns the port.
func listen(t *testing.T, options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	digits().register(server)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

func TestTLS(t *testing.T) {
	certificate, ca := selfSigned(t)
	_, other := selfSigned(t)
	secure := listen(t, grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	plain := listen(t)
	for _, one := range []struct {
		address, ca, says string
	}{
		{"tls://localhost:" + secure, ca, ""},
		{"tls://localhost:" + secure, other, "HEADRACE_TLS_CA"},
		{"tls://127.0.0.1:" + secure, ca, "HEADRACE_TLS_CA"}, // the certificate has another name
		{"tls://localhost:" + plain, ca, "Leave out tls://"},
		{"localhost:" + secure, "", "No Headrace scheduler answers"},
	} {
		client, err := headrace.New(one.address, headrace.WithCA(one.ca), headrace.WithConnectTimeout(500*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Study("digits").Get(t.Context())
		_ = client.Close()
		switch {
		case one.says == "" && err != nil:
			t.Errorf("%s: %v", one.address, err)
		case one.says != "" && (!errors.Is(err, headrace.Unreachable) || !strings.Contains(err.Error(), one.says)):
			t.Errorf("%s: got %v, want %q", one.address, err, one.says)
		}
	}
}
