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

// WithTimeout bounds each call, all its attempts together. The default is 30 seconds, and 10 minutes for a planner. A
// context may end a call sooner.
func WithTimeout(timeout time.Duration) Option {
	return func(s *settings) { s.timeout = timeout }
}

// WithConnectTimeout bounds each call until a server has answered for the first time. The default is 5 seconds: before that,
// a wrong address is likelier than a server that restarts.
func WithConnectTimeout(timeout time.Duration) Option {
	return func(s *settings) { s.connectTimeout = timeout }
}

// WithTLS connects with TLS. The configuration may name authorities and a client's certificate. nil means the
// defaults, which the address prefix tls:// means too.
func WithTLS(config *tls.Config) Option {
	return func(s *settings) {
		if config == nil {
			config = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		s.tls = config.Clone()
	}
}

// WithCA connects with TLS and trusts the authority in a PEM file. HEADRACE_TLS_CA names one where this option does not.
func WithCA(file string) Option {
	return func(s *settings) { s.caFile = file }
}

// WithToken sends a token with each call, as `authorization: Bearer TOKEN`. New takes that of HEADRACE_TOKEN where this option
// names none. A token is refused where it would cross a network in clear.
func WithToken(token string) Option {
	return func(s *settings) { s.token = token }
}

// WithLogger tells a logger of broken connections and of what a list leaves out. Without it the client is silent.
func WithLogger(logger *slog.Logger) Option {
	return func(s *settings) { s.logger = logger }
}

// WithDialOptions passes options on to grpc-go, such as a dialer of one's own.
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

// tlsConfig is what the target and the options say together; nil means plain text. The file that only the environment
// names does not turn TLS on.
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

// GetRequestMetadata is what grpc-go asks for before each call.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity keeps the token off networks in clear.
func (b bearer) RequireTransportSecurity() bool { return b.secure }
