# Writes the ```cpp block of DOCUMENT into HEADER.
file(READ ${DOCUMENT} text)
string(FIND "${text}" "```cpp\n" begin)
string(SUBSTRING "${text}" ${begin} -1 text)
string(REPLACE "```cpp\n" "" text "${text}")
string(FIND "${text}" "```" end)
string(SUBSTRING "${text}" 0 ${end} code)
file(WRITE ${HEADER} "#include \"recurrence/axes/gain.hpp\"\nnamespace rankone::recurrence {\n${code}}\n")
