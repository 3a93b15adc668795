package headrace

import (
	"fmt"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/grpc/codes"
)

// Action is what a trial has to do after a report.
type Action int

const (
	// Continue: train to the next milestone.
	Continue Action = iota + 1
	// Pause: leave the trial. It is handed out again later, if the policy promotes it.
	Pause
	// Stop: leave the trial for good.
	Stop
)

// String is the action in one word.
func (a Action) String() string {
	switch a {
	case Continue:
		return "continue"
	case Pause:
		return "pause"
	case Stop:
		return "stop"
	}
	return fmt.Sprintf("Action(%d)", int(a))
}

// Decision is the answer to a report.
type Decision struct {
	Action Action
	// NextMilestone is the step up to which the trial may run without asking; 0 leaves it unchanged.
	NextMilestone int64
	// Reason says why, for a log.
	Reason string
}

// DecisionOf reads a message. An action that this client does not know gives an Unsupported error.
func DecisionOf(decision *pb.Decision) (Decision, error) {
	actions := map[pb.DecisionAction]Action{
		pb.DecisionAction_DECISION_ACTION_CONTINUE: Continue,
		pb.DecisionAction_DECISION_ACTION_PAUSE:    Pause,
		pb.DecisionAction_DECISION_ACTION_STOP:     Stop,
	}
	action, known := actions[decision.GetAction()]
	if !known {
		return Decision{}, &Error{
			Reason: Unsupported, Code: codes.Unimplemented,
			Message: fmt.Sprintf("The answer is the unknown decision %d", decision.GetAction()),
			Remedy:  "Update this client: the server is newer.",
		}
	}
	return Decision{Action: action, NextMilestone: decision.GetNextMilestone(), Reason: decision.GetReason()}, nil
}
