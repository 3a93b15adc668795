package headrace

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
)

const (
	// streamTimeout is the deadline of one stream; the watch then opens another.
	streamTimeout = time.Hour
	// statusTimeout is for the check, between two streams, whether the study still exists.
	statusTimeout = 3 * time.Second
	// giveUpAfter is how long a watch tries to reach a scheduler.
	giveUpAfter       = 5 * time.Minute
	firstBreak        = 100 * time.Millisecond
	pauseAfterGoodEnd = 200 * time.Millisecond
)

// Update is an item of a watch: new events, which may be none, and the study as of the last of them or later.
type Update struct {
	Events []*pb.Event
	Study  *pb.Study
}

// Watch follows the study: the events after the cursor (0 means all), then new ones as they happen. It ends with the study.
//
// A stream that breaks is followed by another, which starts after the last event that was passed on. So no event is
// missing or repeated. A watch that reaches no scheduler for five minutes ends with an error. The context also ends
// it.
func (s *Study) Watch(ctx context.Context, after int64) iter.Seq2[*Update, error] {
	return func(yield func(*Update, error) bool) {
		at := &position{cursor: after, pause: firstBreak}
		for !at.done {
			went, err := s.follow(ctx, at, yield)
			if !went {
				return
			}
			if err == nil { // a replica that drains, or the end of a stream's time
				err = s.conclude(ctx, at)
			}
			if err != nil {
				pause, failure := at.broken(err, time.Now())
				if failure != nil {
					yield(nil, failure)
					return
				}
				s.client.transport.settings.logger.Warn("headrace: a watch is broken and begins again",
					"study", s.id, "cursor", at.cursor, "error", err.Error())
				if !sleep(ctx, pause) {
					yield(nil, ended(ctx))
					return
				}
			}
		}
	}
}

// follow reads one stream to its end. went is false if the caller wants no more.
func (s *Study) follow(ctx context.Context, at *position, yield func(*Update, error) bool) (went bool, failure *Error) {
	t := s.client.transport
	if ctx.Err() != nil {
		return true, ended(ctx)
	}
	conn, err := t.route.conn()
	if err != nil {
		return true, t.failure(ctx, err)
	}
	limited, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	stream, err := pb.NewStudyServiceClient(conn).WatchStudy(limited,
		&pb.WatchStudyRequest{Name: s.Name(), AfterCursor: at.cursor})
	for err == nil {
		var response *pb.WatchStudyResponse
		if response, err = stream.Recv(); err != nil {
			break
		}
		t.note(ctx, conn, nil)
		if !yield(at.accept(response), nil) {
			return false, nil
		}
		if at.done {
			return true, nil
		}
	}
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return true, t.note(ctx, conn, err)
}

// conclude checks, after a stream that ended cleanly, whether the study still exists.
func (s *Study) conclude(ctx context.Context, at *position) *Error {
	if at.done {
		return nil
	}
	t := s.client.transport
	conn, err := t.route.conn()
	if err != nil {
		return t.failure(ctx, err)
	}
	limited, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	response, err := pb.NewStudyServiceClient(conn).GetStudy(limited, &pb.GetStudyRequest{Name: s.Name()})
	if failure := t.note(ctx, conn, err); failure != nil {
		return failure
	}
	at.conclude(response.GetStudy())
	if !at.done {
		sleep(ctx, pauseAfterGoodEnd)
	}
	return nil
}

// position is the position of a watch: its pure part.
type position struct {
	cursor int64
	// done: the study has ended, and every event up to its own cursor was handed on.
	done        bool
	silentSince time.Time
	pause       time.Duration
}

// accept returns the new events of a response. Events that an old or careless server repeats are dropped by cursor.
func (p *position) accept(response *pb.WatchStudyResponse) *Update {
	p.silentSince, p.pause = time.Time{}, firstBreak
	update := &Update{Study: response.GetStudy()}
	for _, event := range response.GetEvents() {
		if event.GetCursor() > p.cursor {
			p.cursor = event.GetCursor()
			update.Events = append(update.Events, event)
		}
	}
	if len(response.GetEvents()) == 0 {
		// There are none up to the study's cursor: the last ones were deleted by age.
		p.cursor = max(p.cursor, update.Study.GetStatus().GetCursor())
	}
	p.conclude(update.Study)
	return update
}

func (p *position) conclude(study *pb.Study) {
	p.done = Ended(study.GetState()) && study.GetStatus().GetCursor() <= p.cursor
}

// broken says how long to wait before the next stream, or that retrying is pointless.
func (p *position) broken(failure *Error, now time.Time) (time.Duration, *Error) {
	if p.silentSince.IsZero() {
		p.silentSince = now
	}
	if !failure.Retryable() || failure.cause != nil || now.Sub(p.silentSince) > giveUpAfter {
		return 0, failure
	}
	pause := p.pause
	p.pause = min(longestPause, 2*p.pause)
	return pause, nil
}
