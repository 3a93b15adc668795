package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/headrace/headrace/clients/go/headrace"
	headracev1 "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func studyOf(study *headracev1.Study) object {
	status := study.GetStatus()
	found := object{
		"name":   strings.TrimPrefix(study.GetName(), "studies/"),
		"state":  enumOf(study.GetState(), "STUDY_STATE_"),
		"detail": study.GetDetail(),
		"cursor": status.GetCursor(),
		"trials": status.GetPending() + status.GetRunning() + status.GetPaused() + status.GetResumed() + status.GetTerminated(),
		"best":   nil,
	}
	if best := status.GetBest(); best != nil && best.Score != nil {
		found["best"] = number(best.GetScore())
	}
	return found
}

func trialOf(trial *headracev1.Trial) object {
	params := object{}
	for name, value := range headrace.ParamsOf(trial.GetParameters()) {
		if float, ok := value.(float64); ok {
			value = number(float)
		}
		params[name] = value
	}
	found := object{
		"number":          trial.GetNumber(),
		"state":           enumOf(trial.GetState(), "TRIAL_STATE_"),
		"step":            trial.GetStep(),
		"value":           nil,
		"params":          params,
		"reason":          "",
		"checkpoint_uri":  trial.GetCheckpoint().GetUri(),
		"checkpoint_step": trial.GetCheckpoint().GetStep(),
	}
	if trial != nil && trial.Value != nil {
		found["value"] = number(trial.GetValue())
	}
	if trial.GetTerminationReason() != headracev1.TerminationReason_TERMINATION_REASON_UNSPECIFIED {
		found["reason"] = enumOf(trial.GetTerminationReason(), "TERMINATION_REASON_")
	}
	return found
}

// enumOf is the name of a number without its prefix.
func enumOf(value protoreflect.Enum, prefix string) string {
	known := value.Descriptor().Values().ByNumber(value.Number())
	if known == nil || value.Number() == 0 {
		return "UNKNOWN"
	}
	return strings.TrimPrefix(string(known.Name()), prefix)
}

// kindOf is the name of the field that an event's detail is in.
func kindOf(event *headracev1.Event) string {
	message := event.ProtoReflect()
	field := message.WhichOneof(message.Descriptor().Oneofs().ByName("detail"))
	if field == nil {
		return "unknown"
	}
	return string(field.Name())
}

func actionOf(decision headrace.Decision) string { return strings.ToUpper(decision.Action.String()) }

func failureOf(err *headrace.Error) object {
	violations := []object{}
	for _, one := range err.Violations {
		violations = append(violations, object{
			"field": one.Field, "value": one.Value, "message": one.Message, "remedy": one.Remedy,
		})
	}
	return object{
		"code":       codeOf(err.Code),
		"reason":     reasonOf(err.Reason),
		"message":    err.Message,
		"remedy":     remedyOf(err),
		"violations": violations,
		"type":       fmt.Sprintf("%T with %s", err, err.Reason),
	}
}

// codeOf is the name of a status in the API: DeadlineExceeded is DEADLINE_EXCEEDED.
func codeOf(code codes.Code) string {
	if code == codes.Canceled {
		return "CANCELLED"
	}
	name := strings.Builder{}
	for i, letter := range code.String() {
		if i > 0 && 'A' <= letter && letter <= 'Z' {
			name.WriteByte('_')
		}
		name.WriteRune(letter)
	}
	return strings.ToUpper(name.String())
}

// reasonOf is a server's reason; empty for the client's own reasons.
func reasonOf(reason headrace.Reason) string {
	switch reason {
	case headrace.Unreachable, headrace.Deadline, headrace.Cancelled, headrace.Unsupported, headrace.StudyOver:
		return ""
	}
	return string(reason)
}

// remedyOf is the remedy that is shown; for a list of violations, those of its fields.
func remedyOf(err *headrace.Error) string {
	if err.Remedy != "" || len(err.Violations) == 0 {
		return err.Remedy
	}
	return err.Violations[0].Remedy
}

// number is a float as JSON has it.
func number(value float64) any {
	switch {
	case math.IsNaN(value):
		return "NaN"
	case math.IsInf(value, 1):
		return "Infinity"
	case math.IsInf(value, -1):
		return "-Infinity"
	}
	return value
}

// floatOf reads a number, or a text for NaN and the infinities.
func floatOf(text json.RawMessage) (float64, error) {
	value, err := strconv.ParseFloat(strings.Trim(string(text), `"`), 64)
	if err != nil {
		return 0, errBroken{fmt.Sprintf("%s is no number", text)}
	}
	return value, nil
}

// paramsOf reads a configuration: a number with a point is a float, any other is an integer.
func paramsOf(text json.RawMessage) (headrace.Params, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	params := headrace.Params{}
	if err := decoder.Decode(&params); err != nil {
		return nil, errBroken{fmt.Sprintf("%s is no configuration: %v", text, err)}
	}
	for name, value := range params {
		if number, ok := value.(json.Number); ok {
			if whole, err := number.Int64(); err == nil {
				params[name] = whole
			} else if params[name], err = number.Float64(); err != nil {
				return nil, errBroken{fmt.Sprintf("%s is no number", number)}
			}
		}
	}
	return params, nil
}
