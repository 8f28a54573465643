#include "mcap_message.h"

#include <structmember.h>

#include <cstddef>
#include <string>

namespace nb = nanobind;

namespace robocache::python {

namespace {

struct MessageObject {
  PyObject_HEAD;
  PyObject* channel;
  PyObject* topic;
  PyObject* schema;
  PyObject* data;
  unsigned long long log_time;
  unsigned long long publish_time;
  unsigned int sequence;
};

MessageObject* message_of(PyObject* object) { return reinterpret_cast<MessageObject*>(object); }

void free_message(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  MessageObject* const message = message_of(object);
  Py_XDECREF(message->channel);
  Py_XDECREF(message->topic);
  Py_XDECREF(message->schema);
  Py_XDECREF(message->data);
  PyObject_Free(object);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyObject* show_message(PyObject* object) {
  const MessageObject* const message = message_of(object);
  return PyUnicode_FromFormat("Message(topic=%R, log_time=%llu, publish_time=%llu, sequence=%u, data=%zd bytes)",
                              message->topic, message->log_time, message->publish_time, message->sequence,
                              PyBytes_Size(message->data));
}

PyMemberDef members[] = {
    {"topic", T_OBJECT_EX, offsetof(MessageObject, topic), READONLY, "str"},
    {"schema", T_OBJECT_EX, offsetof(MessageObject, schema), READONLY, "Schema, or None"},
    {"channel", T_OBJECT_EX, offsetof(MessageObject, channel), READONLY, "Channel"},
    {"log_time", T_ULONGLONG, offsetof(MessageObject, log_time), READONLY, "nanoseconds"},
    {"publish_time", T_ULONGLONG, offsetof(MessageObject, publish_time), READONLY, "nanoseconds"},
    {"sequence", T_UINT, offsetof(MessageObject, sequence), READONLY, "int"},
    {"data", T_OBJECT_EX, offsetof(MessageObject, data), READONLY, "bytes"},
    {nullptr, 0, 0, 0, nullptr},
};

char doc[] =
    "A message: topic, schema, channel, log_time and publish_time in nanoseconds, sequence, and its data as bytes.";

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(&free_message)},
    {Py_tp_repr, reinterpret_cast<void*>(&show_message)},
    {Py_tp_members, members},
    {Py_tp_doc, doc},
    {0, nullptr},
};

PyType_Spec spec = {"robocache.mcap.Message", sizeof(MessageObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

PyTypeObject* type = nullptr;  // lives as long as the module, which is never unloaded

}  // namespace

void bind_mcap_message(nb::module_& m) {
  PyObject* const made = PyType_FromSpec(&spec);
  if (made == nullptr) throw nb::python_error();
  type = reinterpret_cast<PyTypeObject*>(made);
  m.attr("McapMessage") = nb::handle(made);
}

nb::object make_message(const mcap::Message& message, const ChannelObjects& channel) {
  nb::object data = nb::steal(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(message.data.data()),
                                                        static_cast<Py_ssize_t>(message.data.size())));
  if (!data.is_valid()) throw nb::python_error();
  MessageObject* const made = PyObject_New(MessageObject, type);
  if (made == nullptr) throw nb::python_error();
  made->channel = nb::object(channel.channel).release().ptr();
  made->topic = nb::object(channel.topic).release().ptr();
  made->schema = nb::object(channel.schema).release().ptr();
  made->data = data.release().ptr();
  made->log_time = message.log_time;
  made->publish_time = message.publish_time;
  made->sequence = message.sequence;
  return nb::steal(reinterpret_cast<PyObject*>(made));
}

}  // namespace robocache::python
