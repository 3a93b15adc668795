// Conformance is the Go client's driver for the conformance suite in tests/conformance, whose README defines the
// protocol. It runs commands, one per line on the standard input, through the client's public API.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
)

const version = "0.1.0"

// object is a JSON object.
type object = map[string]any

// command is one line of the input.
type command struct {
	ID       int64           `json:"id"`
	Op       string          `json:"op"`
	Client   string          `json:"client"`
	TimeoutS *float64        `json:"timeout_s"`
	Args     json.RawMessage `json:"args"`
}

// session is the state that the commands share.
type session struct {
	mu      sync.Mutex
	clients map[string]*headrace.Client
	asked   map[int64]*headrace.Asked
	cancels map[int64]context.CancelFunc
	next    int64

	writing sync.Mutex
	out     *json.Encoder
}

// errBroken is a fault of the driver or of the harness, not of a client.
type errBroken struct{ text string }

func (e errBroken) Error() string { return e.text }

func main() {
	s := &session{
		clients: map[string]*headrace.Client{}, asked: map[int64]*headrace.Asked{},
		cancels: map[int64]context.CancelFunc{}, out: json.NewEncoder(os.Stdout),
	}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			log.Fatalf("%s is no command: %v", line, err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		if c.TimeoutS != nil {
			ctx, cancel = context.WithTimeout(ctx, seconds(*c.TimeoutS))
		}
		s.mu.Lock()
		s.cancels[c.ID] = cancel
		s.mu.Unlock()
		go s.carryOut(ctx, cancel, c)
	}
}

func (s *session) carryOut(ctx context.Context, cancel context.CancelFunc, c command) {
	defer cancel()
	answer, err := s.do(ctx, c)
	s.mu.Lock()
	delete(s.cancels, c.ID)
	s.mu.Unlock()
	var broken errBroken
	var told *headrace.Error
	switch {
	case err == nil:
		s.say(object{"id": c.ID, "ok": answer})
	case errors.As(err, &told):
		s.say(object{"id": c.ID, "error": failureOf(told)})
	case errors.As(err, &broken):
		s.say(object{"id": c.ID, "broken": broken.text})
	default:
		s.say(object{"id": c.ID, "broken": fmt.Sprintf("%T: %v", err, err)})
	}
}

func (s *session) do(ctx context.Context, c command) (answer any, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = errBroken{fmt.Sprintf("panic: %v", thrown)}
		}
	}()
	operation, known := operations()[c.Op]
	if !known {
		return nil, errBroken{fmt.Sprintf("there is no operation %q", c.Op)}
	}
	return operation(ctx, s, c)
}

// say writes a line.
func (s *session) say(answer object) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.out.Encode(answer); err != nil {
		log.Fatal(err)
	}
}

// study is the handle to which a command refers.
func (s *session) study(c command, id string) (*headrace.Study, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	client, known := s.clients[c.Client]
	if !known {
		return nil, errBroken{fmt.Sprintf("there is no connection %q", c.Client)}
	}
	return client.Study(id), nil
}

func (s *session) client(c command) (*headrace.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	client, known := s.clients[c.Client]
	if !known {
		return nil, errBroken{fmt.Sprintf("there is no connection %q", c.Client)}
	}
	return client, nil
}

// arguments reads the arguments of a command.
func arguments[T any](c command) (T, error) {
	var found T
	if len(c.Args) == 0 {
		return found, nil
	}
	if err := json.Unmarshal(c.Args, &found); err != nil {
		return found, errBroken{fmt.Sprintf("the arguments of %s: %v", c.Op, err)}
	}
	return found, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
