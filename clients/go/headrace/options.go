package headrace

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"
)

// Option changes how a client or a planner reaches its servers.
type Option func(*settings)

type settings struct {
	timeout        time.Duration
	connectTimeout time.Duration
	tls            *tls.Config
	caFile         string
	token          string
	logger         *slog.Logger
	dialer         []grpc.DialOption
}

// WithTimeout limits each call, all its attempts together. The default is 30 seconds, and 10 minutes for a planner. A
// context may end a call sooner.
func WithTimeout(timeout time.Duration) Option {
	return func(s *settings) { s.timeout = timeout }
}

// WithConnectTimeout limits each call until a server has answered for the first time. The default is 5 seconds:
// before the first answer, a wrong address is more likely than a restarting server.
func WithConnectTimeout(timeout time.Duration) Option {
	return func(s *settings) { s.connectTimeout = timeout }
}

// WithTLS connects with TLS. The configuration may name authorities and a client's certificate. nil means the
// defaults, as does the address prefix tls://.
func WithTLS(config *tls.Config) Option {
	return func(s *settings) {
		if config == nil {
			config = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		s.tls = config.Clone()
	}
}

// WithCA connects with TLS and trusts the authority in a PEM file. Without this option, HEADRACE_TLS_CA names the
// file.
func WithCA(file string) Option {
	return func(s *settings) { s.caFile = file }
}

// WithToken sends a token with each call, as `authorization: Bearer TOKEN`. Without this option, New uses the token
// of HEADRACE_TOKEN. A token is rejected if it would cross a network in plain text.
func WithToken(token string) Option {
	return func(s *settings) { s.token = token }
}

// WithLogger logs broken connections and entries that a list leaves out. Without it the client is silent.
func WithLogger(logger *slog.Logger) Option {
	return func(s *settings) { s.logger = logger }
}

// WithDialOptions passes options to grpc-go, such as your own dialer.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dialer = append(s.dialer, options...) }
}

func collect(timeout time.Duration, options []Option) settings {
	found := settings{
		timeout: timeout, connectTimeout: 5 * time.Second, logger: slog.New(slog.DiscardHandler),
	}
	for _, option := range options {
		option(&found)
	}
	found.connectTimeout = min(found.connectTimeout, found.timeout)
	return found
}

// tlsConfig combines the target and the options; nil means plain text. A file that only the environment names does
// not turn TLS on.
func (s settings) tlsConfig(t target) (*tls.Config, error) {
	if !t.tls && s.tls == nil && s.caFile == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.tls != nil {
		config = s.tls
	}
	file := s.caFile
	if file == "" {
		file = os.Getenv(caVariable)
	}
	if file == "" || config.RootCAs != nil {
		return config, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, invalid("tls_ca", file, "cannot be read: "+reasonOf(err), "Name a certificate authority's file in PEM.")
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, invalid("tls_ca", file, "holds no certificate", "Name a certificate authority's file in PEM.")
	}
	return config, nil
}

func reasonOf(err error) string {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// bearer sends a token with each call.
type bearer struct {
	token  string
	secure bool
}

// GetRequestMetadata is called by grpc-go before each call.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity prevents sending the token over a network in plain text.
func (b bearer) RequireTransportSecurity() bool { return b.secure }
