package headrace

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
)

const (
	addressVariable = "HEADRACE_ADDRESS"
	homeVariable    = "HEADRACE_HOME"
	caVariable      = "HEADRACE_TLS_CA"
	tokenVariable   = "HEADRACE_TOKEN"
	defaultAddress  = "127.0.0.1:7440"
	tlsPrefix       = "tls://"
)

// target is where servers are: the replicas in the order in which they are tried.
type target struct {
	replicas []string
	tls      bool
	// home is the folder whose file "address" named the replicas; empty if they were given, or are the default.
	home string
}

// findTarget reads an address: the one given, or else HEADRACE_ADDRESS, or else the file that `headrace up` left, or
// else the default.
func findTarget(given string) (target, error) {
	if given == "" {
		given = os.Getenv(addressVariable)
	}
	if given != "" {
		return parseTarget("address", given)
	}
	home := homeFolder()
	if text := addressIn(home); text != "" {
		found, err := parseTarget("address", text)
		found.home = home
		return found, err
	}
	if os.Getenv(homeVariable) != "" { // at the default address may be another Headrace, which is not meant
		return target{}, &Error{
			Reason: Unreachable, Code: codes.Unavailable,
			Message: fmt.Sprintf("No `headrace up` runs in %s (%s)", home, homeVariable),
			Remedy:  "Start one with `headrace up`, or give a scheduler's address to New or in HEADRACE_ADDRESS.",
		}
	}
	return parseTarget("address", defaultAddress)
}

// parseTarget reads HOST:PORT, or several with commas, with tls:// before the first if they require TLS. A single
// address may also be unix:PATH.
func parseTarget(field, text string) (target, error) {
	text = strings.TrimSpace(text)
	bare, secure := strings.CutPrefix(text, tlsPrefix)
	if strings.HasPrefix(bare, "unix:") && !strings.ContainsAny(bare, " ,") {
		return target{replicas: []string{bare}, tls: secure}, nil
	}
	replica := regexp.MustCompile(`^(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):([0-9]{1,5})$`)
	var replicas []string
	for _, part := range strings.Split(bare, ",") {
		part = strings.TrimSpace(part)
		if secure {
			part = strings.TrimPrefix(part, tlsPrefix)
		}
		if part == "" {
			continue
		}
		match := replica.FindStringSubmatch(part)
		if match == nil || !isPort(match[2]) {
			return target{}, invalid(field, strconv.Quote(text), "is not an address", addressRemedy(part))
		}
		if !slices.Contains(replicas, part) {
			replicas = append(replicas, part)
		}
	}
	if len(replicas) == 0 {
		return target{}, invalid(field, strconv.Quote(text), "is not an address", addressRemedy(""))
	}
	return target{replicas: replicas, tls: secure}, nil
}

// again is the target as the home's file names it now: `headrace up` may have started again on another port.
func (t target) again() target {
	if t.home == "" {
		return t
	}
	found, err := parseTarget("address", addressIn(t.home))
	if err != nil {
		return t
	}
	found.home = t.home
	return found
}

// local says whether every replica is on this machine.
func (t target) local() bool {
	for _, replica := range t.replicas {
		host := replica[:strings.LastIndex(replica, ":")]
		if !strings.HasPrefix(replica, "unix:") && host != "127.0.0.1" && host != "localhost" && host != "[::1]" {
			return false
		}
	}
	return true
}

func (t target) String() string { return strings.Join(t.replicas, ",") }

func isPort(text string) bool {
	port, err := strconv.Atoi(text)
	return err == nil && 0 < port && port <= 65535
}

func addressRemedy(part string) string {
	at := strings.LastIndex(part, ":")
	switch {
	case strings.HasPrefix(part, tlsPrefix):
		return "Write " + tlsPrefix + " once, before the first address."
	case at > 0 && strings.Contains(part[:at], ":") && !strings.HasPrefix(part, "[") && !strings.Contains(part, "/"):
		return fmt.Sprintf("Put an IPv6 address in brackets: [%s]%s.", part[:at], part[at:])
	}
	return "Use HOST:PORT, or HOST:PORT,HOST:PORT for several servers."
}

func homeFolder() string {
	if named := os.Getenv(homeVariable); named != "" {
		return named
	}
	user, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(user, ".headrace")
}

// addressIn is the address in the file of `headrace up`; empty while it does not serve.
func addressIn(home string) string {
	text, err := os.ReadFile(filepath.Join(home, "address"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
