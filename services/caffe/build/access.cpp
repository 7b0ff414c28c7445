// The module caffe._crosstrain: what Caffe's own Python interface does not give.
//
// - step: Solver::Step without holding Python's lock, so that other threads go on meanwhile;
// - history: the solver's state (velocities, averages) as Caffe's own blobs, not copies;
// - set_delta: the solver's epsilon, which Adam's bias correction changes with every update;
// - random_state, set_random_state: this thread's generator, for a bit-exact resume with dropout.
//
// Importing it also ends a failed CHECK with its message as the last line of the log, instead of glog's
// stack trace.

#include <boost/python.hpp>
#include <glog/logging.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>

#include "caffe/caffe.hpp"
#include "caffe/sgd_solvers.hpp"
#include "caffe/util/rng.hpp"

namespace python = boost::python;

namespace {

class WithoutLock {
 public:
  WithoutLock() : state_(PyEval_SaveThread()) {}
  ~WithoutLock() { PyEval_RestoreThread(state_); }
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  PyThreadState* state_;
};

// Only for solvers without Python callbacks and nets without Python layers.
void Step(caffe::Solver<float>& solver, int count) {
  WithoutLock unlocked;
  solver.Step(count);
}

python::list History(caffe::SGDSolver<float>& solver) {
  python::list blobs;
  for (const auto& blob : solver.history()) {
    blobs.append(blob);
  }
  return blobs;
}

void SetDelta(caffe::Solver<float>& solver, float delta) {
  // Solver keeps its parameters to itself but reads them at every update; base_lr is set the same way.
  const_cast<caffe::SolverParameter&>(solver.param()).set_delta(delta);
}

std::string RandomState() {
  std::ostringstream text;
  text << *caffe::caffe_rng();
  return text.str();
}

void SetRandomState(const std::string& state) {
  // The generator's operator reads on past its last number, which must not be the end.
  std::istringstream text(state + " ");
  caffe::rng_t generator;
  text >> generator;
  if (text.fail()) {
    throw std::invalid_argument("not the state of a random generator");
  }
  *caffe::caffe_rng() = generator;
}

// Keeps the message of a failed CHECK until the process ends.
class FatalMessage : public google::LogSink {
 public:
  using google::LogSink::send;
  void send(google::LogSeverity severity, const char*, const char* file, int line,
            const google::LogMessageTime&, const char* message, std::size_t length) override {
    if (severity == google::GLOG_FATAL) {
      const int shown = static_cast<int>(std::min<std::size_t>(length, 800));
      std::snprintf(text_, sizeof(text_), "Caffe stopped: %.*s (%s:%d)\n", shown, message, file, line);
    }
  }

  const char* text() const { return text_; }

 private:
  char text_[1024] = "Caffe stopped\n";
};

FatalMessage* const fatal_message = new FatalMessage;

[[noreturn]] void Fail() {
  const std::string text = fatal_message->text();
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) {
    // Nothing is left to tell it to.
  }
  std::abort();
}

}  // namespace

BOOST_PYTHON_MODULE(_crosstrain) {
  // Registers the types that the functions below take.
  python::import("caffe._caffe");
  google::AddLogSink(fatal_message);
  google::InstallFailureFunction(&Fail);
  python::def("step", &Step, (python::arg("solver"), python::arg("count") = 1));
  python::def("history", &History);
  python::def("set_delta", &SetDelta);
  python::def("random_state", &RandomState);
  python::def("set_random_state", &SetRandomState);
}
